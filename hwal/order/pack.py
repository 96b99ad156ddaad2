"""The fleet's objective: leave the machine in good sets of k for the jobs that come after this one.

The best-effort policy of NVIDIA's go-gpuallocator, which its Kubernetes device plugin follows: of all ways to cut the free
devices into sets of k, the one with the greatest sum of pair scores; of its sets, the one with the greatest score. A pair
scores 100 for each NVLink, and 10 to 60 for the PCIe path beside it. For one job that is sometimes wrong: a sum over all pairs
hides the one link that the ring waits for (hwal.order.select). On a DGX-1V, over all sets of free GPUs and all k, its choice
has a worse ring than the best in 59 of 522 cases; for four GPUs in 30 of 93, for five in 21 of 37 (tests/bench/order.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import combinations

from hwal.order.answer import Answer
from hwal.topology import Link

PATHS = {"SYS": 10, "SOC": 10, "PCIE": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "PSB": 60}
PER_LINK = 100
NEVER = -(1 << 60)
STATIC = "static: the first free set of the whole machine cut into sets of k (go-gpuallocator's static policy)"
SIMPLE = "simple: the first k (go-gpuallocator's simple policy)"
PACK = "pack: sum of pair scores over the whole machine cut into sets of k, then of the set (go-gpuallocator's best effort)"


def score(link: Link | None) -> int:
    """What a pair counts: its NVLinks and the PCIe path beside them, as far as it is known."""
    if link is None:
        return 0
    bundle = re.fullmatch(r"NV(\d+)", link.class_)
    direct = int(bundle[1]) if bundle else (link.count or 1) if link.class_ == "XGMI" else 0
    path = link.path or (None if direct else link.class_)
    return PER_LINK * direct + PATHS.get(path or "", 0)


def pack(links: Sequence[Link], available: Sequence[int], k: int, required: Collection[int] = ()) -> Answer | None:
    """k of the `available` devices (indices), `required` among them; None where there is no such set.

    Exact up to 16 devices, in the order in which the allocator looks at cuts; beyond that sets are taken greedily.
    """
    if not _fits(available, k, required):
        return None
    of = {(min(link.a, link.b), max(link.a, link.b)): score(link) for link in links}
    worth = [[0 if a == b else of.get((min(a, b), max(a, b)), 0) for b in available] for a in available]
    must = sum(1 << place for place, device in enumerate(available) if device in required)
    exact = len(available) <= 16
    cut = _cut(worth, k, must) if exact else _greedy(worth, k, must)
    whole = [places for places in cut if must == sum(1 << place for place in places) & must and len(places) == k]
    if not whole:
        return None
    best = max(whole, key=lambda places: _sum(worth, places))  # the first of the greatest, as max() gives it
    chosen = tuple(available[place] for place in best)
    why = f"every cut of {len(available)} devices into sets of {k} was weighed" if exact else "sets were taken greedily"
    beside = all(link.path is not None for link in links if link.class_.startswith("NV"))
    why += "" if beside else "; the PCIe path beside NVLink is not known here, and counts nothing"
    return Answer(chosen, PACK, lowest(links, chosen), exact, why, total=_sum(worth, best))


def static(
    links: Sequence[Link], everything: Sequence[int], available: Sequence[int], k: int, required: Collection[int] = ()
) -> Answer | None:
    """The first set of k that is free as a whole, of those that `everything` is cut into; None where k does not divide it.

    The allocator has tables of such sets for its DGX-1; they are the cut that `pack` makes of all devices.
    """
    if not _fits(available, k, required) or len(everything) % k:
        return None
    left, chosen = list(everything), None
    while left:
        cut = pack(links, left, k, left[:1])
        assert cut is not None, "k divides what is left, and its lowest device is in some set"
        if set(required) <= set(cut.places) <= set(available):
            chosen = tuple(sorted(cut.places))
            break
        left = [device for device in left if device not in cut.places]
    if chosen is None:
        return None
    why = f"the {len(everything)} devices are cut into sets of {k} once for all, and this is the first that is free"
    return Answer(chosen, STATIC, lowest(links, chosen), False, why)


def simple(links: Sequence[Link], available: Sequence[int], k: int, required: Collection[int] = ()) -> Answer | None:
    """Those that are required, then the others as they come; None where there is no such set."""
    if not _fits(available, k, required):
        return None
    chosen = (*required, *(device for device in available if device not in required))[:k]
    return Answer(chosen, SIMPLE, lowest(links, chosen), False, "links are not looked at")


def _fits(available: Sequence[int], k: int, required: Collection[int]) -> bool:
    return 1 <= k <= len(available) and len(required) <= k and set(required) <= set(available)


def lowest(links: Sequence[Link], chosen: Sequence[int]) -> str | None:
    """Class of the pair that scores least."""
    sides = {(min(a, b), max(a, b)) for a, b in combinations(chosen, 2)}
    low = min((link for link in links if (link.a, link.b) in sides), key=score, default=None)
    return low.class_ if low else None


def _sum(worth: list[list[int]], places: Sequence[int]) -> int:
    return sum(worth[a][b] for a, b in combinations(places, 2))


def _cut(worth: list[list[int]], k: int, must: int) -> list[tuple[int, ...]]:
    """The cut of the greatest sum; a last set may be short. `must`: devices that have to be in one set."""
    n = len(worth)

    def sets(rest: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Sets with the lowest device left, in the allocator's order: what is short it fills with empty places, last."""
        first = (rest & -rest).bit_length() - 1
        others = [b for b in range(first + 1, n) if rest >> b & 1]
        for places in _subsets((first,), others, k, k - (-rest.bit_count() % k)):
            bits = sum(1 << place for place in places)
            if not bits & must or bits & must == must:
                yield bits, places

    @cache
    def best(rest: int) -> int:
        if not rest:
            return 0
        return max((_sum(worth, places) + best(rest ^ bits) for bits, places in sets(rest)), default=NEVER)

    rest, cut = (1 << n) - 1, []
    while rest:
        bits, places = next(found for found in sets(rest) if _sum(worth, found[1]) + best(rest ^ found[0]) == best(rest))
        cut.append(places)
        rest ^= bits
    return cut


def _subsets(chosen: tuple[int, ...], others: Sequence[int], most: int, least: int) -> Iterator[tuple[int, ...]]:
    """`chosen` and more of `others`, `least` or `most` in all; of two with the same beginning the longer comes first.

    The allocator never spreads empty places over several sets.
    """
    if len(chosen) < most:
        for i, place in enumerate(others):
            yield from _subsets((*chosen, place), others[i + 1 :], most, least)
    if len(chosen) in (least, most):
        yield chosen


def _greedy(worth: list[list[int]], k: int, must: int) -> list[tuple[int, ...]]:
    """The set that must be first; then from the lowest device left, those that add most."""
    left = list(range(len(worth)))
    cut = []
    seeds = [place for place in left if must >> place & 1]
    while len(left) >= k:
        chosen = seeds or [left[0]]
        seeds = []
        left = [place for place in left if place not in chosen]
        while len(chosen) < k:
            best = max(left, key=lambda b: (sum(worth[a][b] for a in chosen), -b))
            chosen.append(best)
            left.remove(best)
        cut.append(tuple(sorted(chosen)))
    return cut
