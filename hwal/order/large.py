"""More devices than can be ordered exactly: nearest neighbour, then 2-opt (Croes, Operations Research 6:791, 1958).

Where the worst link is still below the bound, paths of better links alone are sought by rotations (Pósa, Discrete Mathematics
14:359, 1976), which find the ring of sparse graphs, meshes and tori among them, that 2-opt does not.
"""

from __future__ import annotations

from random import Random

from hwal.order.bound import bound
from hwal.order.graph import Graph

ROUNDS = 12  # of 2-opt over all pairs of links; 72 devices come to rest in three or four
TURNS = 100  # rotations for each device, before a path is begun anew
PATHS = 6
FEW = 12  # levels that can be tried one by one


def large(net: Graph, chain: bool) -> tuple[int, ...]:
    """A good order of all devices, device 0 first where it is a ring. Not proven to be the best."""
    cost = costs(net, net.n)
    starts = range(min(net.n, 4))
    found = [_improve(_nearest(net, start), cost, chain) for start in starts]
    places = min(found, key=lambda order: (_total(order, cost, chain), order))
    low, high = _worst(net, places, chain), bound(net, chain)
    while low < high:
        middle = (low + high + 1) // 2 if net.levels > FEW else high  # the best first: it is often there
        better = _rotate(net, middle, chain)
        if better is None:
            high = middle - 1
        else:
            places = _improve(better, cost, chain)
            low = max(middle, _worst(net, places, chain))
    if chain:
        return tuple(places if places[0] < places[-1] else places[::-1])
    at = places.index(0)
    turned = places[at:] + places[:at]
    if turned[1] > turned[-1]:
        turned = [0, *turned[:0:-1]]
    return tuple(turned)


def costs(net: Graph, links: int) -> list[list[int]]:
    """Whole numbers for sums over at most `links`, lower is better: a link of a worse level outweighs all of better ones; then
    speed, then NUMA.
    """
    n, top = net.n, net.levels - 1
    scale = links + 1
    fast = max(map(max, net.speed))
    unit = scale * scale * (fast + 1)
    step = [unit * (scale ** (top - level) - 1) for level in range(top + 1)]
    return [
        [0 if a == b else step[net.level[a][b]] + (fast - net.speed[a][b]) * scale + net.apart(a, b) for b in range(n)]
        for a in range(n)
    ]


def _nearest(net: Graph, start: int) -> list[int]:
    """From each device to the best linked one that is left."""
    left = set(range(net.n)) - {start}
    places = [start]
    while left:
        here = places[-1]
        best = max(left, key=lambda b: (net.level[here][b], net.speed[here][b], -net.apart(here, b), -b))
        left.remove(best)
        places.append(best)
    return places


def _improve(places: list[int], cost: list[list[int]], chain: bool) -> list[int]:
    """Turns stretches of the order round while that makes it better."""
    n = len(places)
    for _ in range(ROUNDS):
        changed = False
        for i in range(n - 1):
            a, b = (places[i - 1] if i or not chain else None), places[i]
            for j in range(i + 1, n):
                c, d = places[j], (places[(j + 1) % n] if j + 1 < n or not chain else None)
                if a is c or (a is not None and a == c) or (d is not None and d == b):
                    continue
                now = (cost[a][b] if a is not None else 0) + (cost[c][d] if d is not None else 0)
                new = (cost[a][c] if a is not None else 0) + (cost[b][d] if d is not None else 0)
                if new < now:
                    places[i : j + 1] = places[i : j + 1][::-1]
                    b = places[i]
                    changed = True
        if not changed:
            break
    return places


def _worst(net: Graph, places: list[int], chain: bool) -> int:
    return min(net.level[a][b] for a, b in zip(places, places[1:] if chain else places[1:] + places[:1], strict=False))


def _rotate(net: Graph, floor: int, chain: bool) -> list[int] | None:
    """A ring (chain) of links of level `floor` and better; None where none was found.

    A path grows from its end to the neighbour that has fewest ways on. Where there is none, the stretch after one of the end's
    neighbours on the path is turned round, which gives the path another end.
    """
    n = net.n
    near = [[b for b in range(n) if net.level[a][b] >= floor] for a in range(n)]
    chance = Random(n)  # the same answer each time
    for start in range(PATHS):
        path = [start * n // PATHS]
        left = set(range(n)) - {path[0]}
        for _ in range(TURNS * n):
            end = path[-1]
            on = [b for b in near[end] if b in left]
            if on:
                path.append(min(on, key=lambda b: (sum(c in left for c in near[b]), b)))
                left.remove(path[-1])
                continue
            if not left and (chain or path[0] in near[end]):
                return path
            back = chance.choice(near[end]) if near[end] else end
            if back == path[0] and left:  # a ring of a part: opened where a device has a way to the rest
                gates = [i for i, a in enumerate(path) if any(b in left for b in near[a])]
                if gates:
                    path = path[gates[0] + 1 :] + path[: gates[0] + 1]
                    continue
            at = path.index(back) + 1
            path[at:] = path[at:][::-1]
    return None


def _total(places: list[int], cost: list[list[int]], chain: bool) -> int:
    pairs = zip(places, places[1:] if chain else places[1:] + places[:1], strict=False)
    return sum(cost[a][b] for a, b in pairs)
