"""More devices than can be ordered exactly: nearest neighbour, then 2-opt (Croes, Operations Research 6:791, 1958)."""

from __future__ import annotations

from hwal.order.graph import Graph

ROUNDS = 12  # of 2-opt over all pairs of links; 72 devices come to rest in three or four


def large(net: Graph, chain: bool) -> tuple[int, ...]:
    """A good order of all devices, device 0 first where it is a ring. Not proven to be the best."""
    cost = _costs(net)
    starts = range(min(net.n, 4))
    found = [_improve(_nearest(net, start), cost, chain) for start in starts]
    places = min(found, key=lambda order: (_total(order, cost, chain), order))
    if chain:
        return tuple(places if places[0] < places[-1] else places[::-1])
    at = places.index(0)
    turned = places[at:] + places[:at]
    if turned[1] > turned[-1]:
        turned = [0, *turned[:0:-1]]
    return tuple(turned)


def _costs(net: Graph) -> list[list[int]]:
    """Whole numbers, lower is better: one link of a worse level outweighs n of a better; then speed, then NUMA."""
    n, top = net.n, net.levels - 1
    scale = n + 1
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


def _total(places: list[int], cost: list[list[int]], chain: bool) -> int:
    pairs = zip(places, places[1:] if chain else places[1:] + places[:1], strict=False)
    return sum(cost[a][b] for a, b in pairs)
