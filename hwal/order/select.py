"""The best k of the devices, for one job: the best worst link of a ring over them, then its sum, then the fewest NUMA nodes.

One dynamic program weighs the rings of all subsets at once: for each lowest device, the best path through each set of later
ones (see hwal.order.ring). A sum over all pairs, which fleets' allocators maximise, hides a bottleneck: hwal.order.pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from hwal.order.answer import Answer
from hwal.order.bound import bound
from hwal.order.graph import EXACT, Graph
from hwal.order.ring import NEVER, key, order

JOB = "job: worst link of the ring, then its sum, then fewest NUMA nodes, then PCI order"

STARTS = 24  # of sets that are grown where there are too many devices to weigh all


def select(net: Graph, k: int, must: Sequence[int] = ()) -> Answer:
    """The best k of the graph's devices, in PCI order, those of `must` among them. Needs 1 ≤ k ≤ n and len(must) ≤ k."""
    n = net.n
    if k == 1:
        return Answer(tuple(must) or (0,), JOB, None, True, "one device has no links: the first")
    if k == n:
        return _answer(net, tuple(range(n)), True, f"there are {n}: all of them")
    if net.is_uniform() and (None not in net.numa or set(net.numa) == {None}):
        return _answer(net, _fewest_nodes(net, k, must), True, f"{net.alike()}: the fewest NUMA nodes, proven")
    if n <= EXACT:
        return _answer(
            net, _exact(net, k, must), True, f"all sets of {k} of {n} devices were weighed (dynamic program over sets)"
        )
    return _answer(
        net,
        _grow(net, k, must),
        False,
        f"{n} devices are too many to weigh every set of {k}: the best of those grown device by device",
    )


def _answer(net: Graph, places: tuple[int, ...], exact: bool, why: str) -> Answer:
    ring = order(net.among(places))
    return Answer(places, JOB, ring.bottleneck, exact, why, None, net.assumed, ring.total)


def _fewest_nodes(net: Graph, k: int, must: Sequence[int]) -> tuple[int, ...]:
    """k of n equally linked devices, on as few NUMA nodes as they fit on: those of `must`, what is beside them, then others."""
    beside = [place for place in range(net.n) if place not in must and net.numa[place] in {net.numa[own] for own in must}]
    taken = [*must, *beside][: max(k, len(must))]
    left = [place for place in range(net.n) if place not in taken]
    return tuple(sorted([*taken, *_fewest(net, left, k - len(taken))]))


def _fewest(net: Graph, left: Sequence[int], k: int) -> Sequence[int]:
    """k of these places, on as few NUMA nodes as they fit on."""
    if k == 0 or None in net.numa:
        return left[:k]
    nodes: dict[int | None, list[int]] = {}
    for place in left:
        nodes.setdefault(net.numa[place], []).append(place)
    whole = [places for places in nodes.values() if len(places) >= k]
    if whole:
        return min(whole)[:k]
    largest = sorted(nodes.values(), key=lambda places: (-len(places), places))
    chosen: list[int] = []
    for places in largest:
        chosen += places[: k - len(chosen)]
    return chosen


def _exact(net: Graph, k: int, must: Sequence[int]) -> tuple[int, ...]:
    low, high = 0, net.levels - 1
    while low < high:  # the best level at which k devices lie on a ring
        middle = (low + high + 1) // 2
        if _rings(net, middle, k, must, first=True):
            low = middle
        else:
            high = middle - 1
    rings = _rings(net, low, k, must, first=False)
    return min(rings, key=lambda places: (-rings[places], len({net.numa[p] for p in places}), places))


def _rings(net: Graph, floor: int, k: int, must: Sequence[int], first: bool) -> dict[tuple[int, ...], int]:
    """Sets of k devices, those of `must` among them, that lie on a ring of links of at least level `floor`, and the most that
    the speeds of such a ring come to.

    With `first` the first one found is enough.
    """
    found: dict[tuple[int, ...], int] = {}
    n = net.n
    for start in range(min(n - k, *must) + 1 if must else n - k + 1):
        later = range(start + 1, n)
        m = len(later)
        step = [[net.speed[a][b] if net.level[a][b] >= floor else NEVER for b in later] for a in later]
        home = [net.speed[start][b] if net.level[start][b] >= floor else NEVER for b in later]
        best: dict[int, list[int]] = {1 << i: [home[i] if j == i else NEVER for j in range(m)] for i in range(m)}
        for _ in range(k - 2):
            best = _longer(best, step, m)
        needed = sum(1 << place - start - 1 for place in must if place != start)
        for group, row in best.items():
            if group & needed != needed:
                continue
            total = max(row) if k == 2 else max(map(add, row, home))
            if total > NEVER // 2:  # a speed may be 0
                places = (start, *(later[i] for i in range(m) if group >> i & 1))
                found[places] = total
                if first:
                    return found
    return found


def _longer(best: dict[int, list[int]], step: list[list[int]], m: int) -> dict[int, list[int]]:
    """From the best paths through sets of one size to those through sets of one more."""
    longer: dict[int, list[int]] = {}
    for group, row in best.items():
        if max(row) < NEVER // 2:
            continue
        for end in range(m):
            if not group >> end & 1:
                total = max(map(add, row, step[end]))
                if total > NEVER // 2:
                    known = longer.setdefault(group | 1 << end, [NEVER] * m)
                    if total > known[end]:
                        known[end] = total
    return longer


def _grow(net: Graph, k: int, must: Sequence[int]) -> tuple[int, ...]:
    """From every device, or from STARTS of them, or from `must`, one after the other that is best linked to those taken."""
    found = []
    for start in [list(must)] if must else [[place] for place in range(0, net.n, -(-net.n // STARTS))]:
        chosen, left = start, set(range(net.n)) - set(start)
        while len(chosen) < k:
            best = max(
                left,
                key=lambda b: (
                    sorted((net.level[a][b] for a in chosen), reverse=True)[:2],
                    sum(net.speed[a][b] for a in chosen),
                    -min(net.apart(a, b) for a in chosen),
                    -b,
                ),
            )
            chosen.append(best)
            left.remove(best)
        places = tuple(sorted(chosen))
        part = net.among(places)
        found.append((bound(part) if k > 2 else part.level[0][1], sum(map(sum, part.speed)), places))
    best_level = max(level for level, _, _ in found)
    near = sorted({(total, places) for level, total, places in found if level == best_level}, key=lambda f: (-f[0], f[1]))
    return max((places for _, places in near[:3]), key=lambda places: (_ring_key(net, places), [-p for p in places]))


def _ring_key(net: Graph, places: tuple[int, ...]) -> tuple[int, int]:
    part = net.among(places)
    low, _, total, _ = key(part, order(part).places)
    return low, total
