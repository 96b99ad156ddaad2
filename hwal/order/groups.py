"""Blocks of g devices, for groups that talk most (tensor parallelism): every pair inside a block matters, not just a ring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product

from hwal.order.answer import Answer
from hwal.order.graph import EXACT, Graph
from hwal.order.large import FEW, costs
from hwal.order.ring import NEVER, by_numa, order

GROUPS = "groups: worst pair inside a block, then sum inside blocks, then PCI order; then the ring of the blocks"


def groups(net: Graph, size: int) -> Answer:
    """All devices in blocks of `size`, which must divide their number. The blocks stand in the order of their best ring."""
    n = net.n
    if n == 0:
        return Answer((), GROUPS, None, True, "there are no devices", size)
    if net.is_uniform() and (None not in net.numa or set(net.numa) == {None}):
        line = by_numa(net)
        cut = [tuple(line[i : i + size]) for i in range(0, n, size)]
        return _answer(net, cut, size, True, f"{net.alike()}: one NUMA node after the other, proven")
    if n <= EXACT:
        cut, why = _exact(net, size), f"every way to cut {n} devices into blocks of {size} was weighed"
        return _answer(net, cut, size, True, why)
    why = f"{n} devices are too many to weigh every cut: each block was grown, and devices swapped while that made it better"
    return _answer(net, _large(net, size), size, False, why)


def _pairs(block: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return combinations(block, 2)


def _answer(net: Graph, cut: list[tuple[int, ...]], size: int, exact: bool, why: str) -> Answer:
    inside = [pair for block in cut for pair in _pairs(block)]
    low = min((net.level[a][b] for a, b in inside), default=None)
    total = sum(net.speed[a][b] for a, b in inside)
    places = tuple(place for block in _in_ring(net, cut) for place in block)
    worst = None if low is None else net.name_of(low)
    return Answer(places, GROUPS, worst, exact, why, size, net.assumed, total)


def _in_ring(net: Graph, cut: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The blocks in their best ring: between two blocks, rank i of the one talks to rank i of the other."""
    count = len(cut)
    level = [
        [-1 if x == y else min(net.level[a][b] for a, b in zip(cut[x], cut[y], strict=True)) for y in range(count)]
        for x in range(count)
    ]
    speed = [
        [0 if x == y else sum(net.speed[a][b] for a, b in zip(cut[x], cut[y], strict=True)) for y in range(count)]
        for x in range(count)
    ]
    numa = tuple(net.numa[block[0]] for block in cut)
    used = sorted({value for row in level for value in row if value >= 0})
    dense = {value: i for i, value in enumerate(used)} | {-1: -1}
    blocks = Graph(
        tuple(tuple(dense[value] for value in row) for row in level),
        tuple(map(tuple, speed)),
        numa,
        tuple(tuple(map(net.name_of, row)) for row in level),
        len(used),
    )
    return [cut[i] for i in order(blocks).places]


def _exact(net: Graph, size: int) -> list[tuple[int, ...]]:
    levels = range(net.levels)
    low, high = 0, len(levels) - 1
    while low < high:  # the best level at which the devices can be cut into blocks
        middle = (low + high + 1) // 2
        if _cut(net, size, middle) is not None:
            low = middle
        else:
            high = middle - 1
    cut = _cut(net, size, low)
    assert cut is not None  # at level 0 every cut will do
    return cut


def _cut(net: Graph, size: int, floor: int) -> list[tuple[int, ...]] | None:
    """The cut of the greatest sum inside blocks, with no pair in a block below `floor`; None where there is no cut."""

    def blocks(rest: int) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Blocks that hold the lowest device left: as a set of bits, as places, and their sum."""
        first = (rest & -rest).bit_length() - 1
        near = [b for b in range(first + 1, net.n) if rest >> b & 1 and net.level[first][b] >= floor]
        for others in combinations(near, size - 1):
            if all(net.level[a][b] >= floor for a, b in combinations(others, 2)):
                block = (first, *others)
                yield sum(1 << place for place in block), block, sum(net.speed[a][b] for a, b in _pairs(block))

    @cache
    def best(rest: int) -> int:
        if not rest:
            return 0
        return max((total + best(rest ^ bits) for bits, _, total in blocks(rest)), default=NEVER)

    rest = (1 << net.n) - 1
    if best(rest) < NEVER // 2:
        return None
    cut = []
    while rest:
        bits, block, _ = next(found for found in blocks(rest) if found[2] + best(rest ^ found[0]) == best(rest))
        cut.append(block)
        rest ^= bits
    return cut


def _grow(net: Graph, size: int) -> list[tuple[int, ...]]:
    """The lowest device left, and with it those whose worst link into the block is best."""
    left = list(range(net.n))
    cut = []
    while left:
        block = [left.pop(0)]
        while len(block) < size:
            best = max(
                left,
                key=lambda b: (
                    min(net.level[a][b] for a in block),
                    sum(net.speed[a][b] for a in block),
                    -max(net.apart(a, b) for a in block),
                    -b,
                ),
            )
            block.append(best)
            left.remove(best)
        cut.append(tuple(sorted(block)))
    return cut


def _large(net: Graph, size: int) -> list[tuple[int, ...]]:
    """A good cut: grown by the best links, or, where that ends with worse ones, by devices with the fewest to choose from."""
    cut = _swapped(net, _grow(net, size))
    low = min(net.level[a][b] for block in cut for a, b in _pairs(block)) if size > 1 else 0
    high = net.levels - 1
    while low < high and size > 1:
        middle = (low + high + 1) // 2 if net.levels > FEW else high
        found = _scarce(net, size, middle)
        if found is None:
            high = middle - 1
        else:
            cut, low = _swapped(net, found), middle
    return cut


def _scarce(net: Graph, size: int, floor: int) -> list[tuple[int, ...]] | None:
    """Blocks of links of level `floor` and better, each begun by a device with fewest of them left; None where one is short."""
    near = [{b for b in range(net.n) if net.level[a][b] >= floor} for a in range(net.n)]
    left = set(range(net.n))
    cut = []
    while left:
        block: list[int] = []
        fit = left
        while len(block) < size:
            if not fit:
                return None
            block.append(min(fit, key=lambda a: (len(near[a] & left), a)))
            left = left - {block[-1]}
            fit = fit & near[block[-1]] & left
        cut.append(tuple(sorted(block)))
    return sorted(cut)


def _swapped(net: Graph, cut: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Two devices of two blocks change places while that makes the pairs inside cheaper: one pair of a worse level outweighs
    all of better ones."""
    cost = costs(net, len(cut) * len(cut[0]) ** 2)
    blocks = [list(block) for block in cut]
    inside = [
        [sum(cost[a][b] for b in block) for block in blocks] for a in range(net.n)
    ]  # device, block -> what it costs there
    changed = True
    while changed:
        changed = False
        for x, y in combinations(range(len(blocks)), 2):
            for i, j in product(range(len(blocks[x])), range(len(blocks[y]))):
                a, b = blocks[x][i], blocks[y][j]
                now = inside[a][x] + inside[b][y]
                if inside[a][y] + inside[b][x] - 2 * cost[a][b] < now:
                    blocks[x][i], blocks[y][j] = b, a
                    for other, row in enumerate(inside):
                        row[x] += cost[other][b] - cost[other][a]
                        row[y] += cost[other][a] - cost[other][b]
                    changed = True
    return sorted(tuple(sorted(block)) for block in blocks)
