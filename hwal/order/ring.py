"""Rings and chains: the best cyclic order of all devices, and the best line of them.

Exact up to EXACT devices, by Held and Karp's dynamic program (J. SIAM 10:196, 1962): the best path through each set of devices
to each end, in O(2^n n^2). A search over thresholds goes before it: whether a ring of links of at least some level exists is
asked with one bit for each end, which is quick, and what is below the best such level is never in the answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from operator import add

from hwal.order.answer import Answer
from hwal.order.bound import bound
from hwal.order.graph import EXACT, Graph
from hwal.order.large import large

NEVER = -(1 << 62)
RING = "ring: worst link, then fewest of it, then sum, then fewest NUMA changes, then PCI order"
CHAIN = "chain: worst link, then fewest of it, then sum, then fewest NUMA changes, then PCI order"


def order(net: Graph, chain: bool = False) -> Answer:
    """All devices in the best order. `chain`: the last need not be linked to the first (pipeline stages)."""
    n = net.n
    if n <= 1:
        return Answer(tuple(range(n)), CHAIN if chain else RING, None, True, "a single device has one order", total=0)
    if n == 2 or (n == 3 and not chain):
        return _answer(net, tuple(range(n)), chain, True, f"{n} devices have one {_name(chain)}")
    if net.is_uniform() and (None not in net.numa or set(net.numa) == {None}):
        same, blocks = tuple(range(n)), by_numa(net)
        if key(net, same, chain) == key(net, blocks, chain):
            return _answer(net, same, chain, True, f"{net.alike()}: the devices as they are, proven")
        if n > EXACT:
            return _answer(net, blocks, chain, True, f"{net.alike()}: one NUMA node after the other, proven")
    if n <= EXACT:
        places = _exact(net, chain)
        return _answer(net, places, chain, True, f"every order of {n} devices was weighed (dynamic program over sets)")
    places = large(net, chain)
    answer = _answer(net, places, chain, False, "")
    limit = bound(net, chain)
    reached = worst(net, places, chain) == limit
    why = (
        f"{n} devices are too many to weigh every order; that no order has a better worst link than {net.name_of(limit)} is "
        "proven, for better links do not hold all devices together; that the rest is best is not"
        if reached
        else f"{n} devices are too many to weigh every order; the worst link may be as good as {net.name_of(limit)} in another"
    )
    return replace(answer, why=why, certified=reached)


def _name(chain: bool) -> str:
    return "chain" if chain else "ring"


def by_numa(net: Graph) -> tuple[int, ...]:
    """Devices node by node, each node where its first device stands: the fewest NUMA changes there can be."""
    first: dict[int | None, int] = {}
    for place, node in enumerate(net.numa):
        first.setdefault(node, place)
    return tuple(sorted(range(net.n), key=lambda place: (first[net.numa[place]], place)))


def edges(places: tuple[int, ...], chain: bool) -> list[tuple[int, int]]:
    """The links that an order uses."""
    found = list(pairwise(places))
    if not chain and len(places) > 2:
        found.append((places[-1], places[0]))
    return found


def worst(net: Graph, places: tuple[int, ...], chain: bool) -> int:
    """Level of the worst link that an order uses."""
    return min(net.level[a][b] for a, b in edges(places, chain))


def key(net: Graph, places: tuple[int, ...], chain: bool = False) -> tuple[int, int, int, int]:
    """The objective as a value: greater is better."""
    used = edges(places, chain)
    low = min(net.level[a][b] for a, b in used)
    at = sum(net.level[a][b] == low for a, b in used)
    return low, -at, sum(net.speed[a][b] for a, b in used), -sum(net.apart(a, b) for a, b in used)


def _answer(net: Graph, places: tuple[int, ...], chain: bool, exact: bool, why: str) -> Answer:
    low, _, total, _ = key(net, places, chain)
    return Answer(places, CHAIN if chain else RING, net.name_of(low), exact, why, None, net.assumed, total)


def threshold(net: Graph, chain: bool) -> int:
    """The best level at which a ring (chain) of links of at least that level exists."""
    low, high = 0, bound(net, chain)
    while low < high:
        middle = (low + high + 1) // 2
        if exists(net, middle, chain):
            low = middle
        else:
            high = middle - 1
    return low


def exists(net: Graph, floor: int, chain: bool) -> bool:
    """Whether all devices lie on one ring (chain) of links of level `floor` or better. Exponential in n."""
    n = net.n
    near = [sum(1 << b for b in range(n) if net.level[a][b] >= floor) for a in range(n)]
    full = (1 << n) - 1
    ends = [0] * (full + 1)  # set -> the devices at which a path through exactly this set can end
    starts = range(n) if chain else (0,)
    for a in starts:
        ends[1 << a] = 1 << a
    for group in range(1, full + 1):
        if ends[group] or (not chain and not group & 1):
            continue
        found, rest = 0, group if chain else group & ~1
        while rest:
            bit = rest & -rest
            if ends[group ^ bit] & near[bit.bit_length() - 1]:
                found |= bit
            rest ^= bit
        ends[group] = found
    return bool(ends[full] if chain else ends[full] & near[0])


def weights(net: Graph, floor: int) -> list[list[int]]:
    """One whole number for each link, such that a greater sum is a better ring whose worst link is of level `floor`."""
    n = net.n
    scale = n + 1  # more than the NUMA changes of a ring
    most = (n + 1) * scale * (max(map(max, net.speed)) + 1)  # more than all that a ring's speeds can come to
    return [
        [
            NEVER
            if net.level[a][b] < floor
            else net.speed[a][b] * scale - net.apart(a, b) - (most if net.level[a][b] == floor else 0)
            for b in range(n)
        ]
        for a in range(n)
    ]


@lru_cache(maxsize=8)  # a choice and the command that goes on from it ask for the same
def _exact(net: Graph, chain: bool) -> tuple[int, ...]:
    """The best order; among equals the one that begins with the lowest devices."""
    return _walk(weights(net, threshold(net, chain)), net.n, chain)


def _walk(weight: list[list[int]], n: int, chain: bool) -> tuple[int, ...]:
    """Held and Karp. `best[set][end]`: the most that a path from the start through `set` to `end` comes to.

    A ring starts, and ends, at device 0, which is in no set; a chain may start anywhere.
    """
    shift = 0 if chain else 1  # a ring's device 0 is in no set
    m = n - shift
    inner = [row[shift:] for row in weight[shift:]]
    none = [NEVER] * m
    best: list[list[int]] = [none] * (1 << m)
    for end in range(m):
        best[1 << end] = [0 if chain and i == end else weight[0][end + 1] if i == end else NEVER for i in range(m)]
    for group in range(1, 1 << m):
        if not group & (group - 1):
            continue
        row, rest = none[:], group
        while rest:
            bit = rest & -rest
            end = bit.bit_length() - 1
            row[end] = max(map(add, best[group ^ bit], inner[end]))
            rest ^= bit
        best[group] = row
    group = (1 << m) - 1
    last = best[group] if chain else list(map(add, best[group], weight[0][1:]))
    # read backwards: the lowest device that still leads to the best total, at each place
    end = last.index(max(last))
    places = [end]
    while group & (group - 1):
        rest = group ^ (1 << end)
        totals = list(map(add, best[rest], inner[end]))
        group, end = rest, totals.index(max(totals))
        places.append(end)
    return tuple(places) if chain else (0, *(place + 1 for place in places))
