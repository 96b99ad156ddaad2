"""A bound on the worst link of any ring: a ring is two-connected, so its links hold the devices together even without one.

If the links of some level and better leave the devices in two parts, or hang them on a single device, then no ring uses only
such links. That is asked in O(n^2), and certifies what a search that cannot weigh every order has found.
"""

from __future__ import annotations

from hwal.order.graph import Graph


def bound(net: Graph, chain: bool = False) -> int:
    """The best level that the worst link of a ring (chain) could have: no order has a better one."""
    low, high = 0, net.levels - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(net, middle, chain):
            low = middle
        else:
            high = middle - 1
    return low


def holds(net: Graph, floor: int, chain: bool) -> bool:
    """Whether links of level `floor` and better join all devices; for a ring also after any one device is taken away.

    For a chain also that at most two devices have a single such link.
    """
    near = [[b for b in range(net.n) if net.level[a][b] >= floor] for a in range(net.n)]
    if chain:
        return len(_reach(near, 0, None)) == net.n and sum(len(others) < 2 for others in near) <= 2
    if net.n == 2:
        return bool(near[0])
    return len(_reach(near, 0, None)) == net.n and not _has_cut(near)


def _reach(near: list[list[int]], start: int, without: int | None) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        for other in near[todo.pop()]:
            if other not in seen and other != without:
                seen.add(other)
                todo.append(other)
    return seen


def _has_cut(near: list[list[int]]) -> bool:
    """Whether taking one device away parts the others."""
    n = len(near)
    return any(len(_reach(near, 1 if cut == 0 else 0, cut)) < n - 1 for cut in range(n))
