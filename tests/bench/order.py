"""How long order, select and groups take, and how often the fleets' objective is worse for one job than ours.

    python tests/bench/order.py [--rounds 3]

Times are CPU milliseconds of the search alone, the best of the rounds: on a mesh (two islands, links at random inside), where
nothing is alike and all has to be weighed, and on a uniform fabric. Promised (specs/gpus.md): 8 devices under 5 ms, 16 well
under 2 s, 72 under 1 s. The table is of a DGX-1V: for each number of free GPUs and each k, over all sets of free GPUs, how
often the set that the sum over all pairs chooses has a worse ring than the best there is.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from itertools import combinations
from time import process_time

from hwal.order import Answer, Graph, graph, groups, order, pack, select
from hwal.topology import Device, Link
from tests.order.machines import dgx_1v

SIZES = (8, 16, 72)
PROMISED = {8: 5.0, 16: 2000.0, 72: 1000.0}  # ms


def mesh(n: int, seed: int) -> Graph:
    """Two islands of n/2 with links of one to three inside, and some across; a NUMA node each."""
    chance = random.Random(seed)
    near, far = ("NV1", "NV2", "NV3", "PIX"), ("NV1", "NODE", "SYS", "SYS")
    half = n // 2
    links = [Link(a, b, chance.choice(near if a // half == b // half else far)) for a, b in combinations(range(n), 2)]
    return graph([Device("cuda", i, numa=i // half) for i in range(n)], links)


def uniform(n: int) -> Graph:
    links = [Link(a, b, "NV18") for a, b in combinations(range(n), 2)]
    return graph([Device("cuda", i, numa=i * 2 // n) for i in range(n)], links)


def fastest(call: Callable[[], Answer], rounds: int) -> tuple[float, Answer]:
    times = []
    for _ in range(rounds):
        begun = process_time()
        answer = call()
        times.append((process_time() - begun) * 1e3)
    return min(times), answer


def times(rounds: int) -> None:
    print(f"{'ms':26}" + "".join(f"{f'{n} devices':>16}" for n in SIZES))
    calls: dict[str, Callable[[Graph], Answer]] = {
        "order": order,
        "order --chain": lambda net: order(net, chain=True),
        "select -k n/2": lambda net: select(net, net.n // 2),
        "select -k 5n/9": lambda net: select(net, 5 * net.n // 9),
        "groups -g 2": lambda net: groups(net, 2),
        "groups -g n/4": lambda net: groups(net, net.n // 4),
    }
    for kind, make in (("mesh", lambda n: mesh(n, n)), ("uniform", uniform)):
        nets = [make(n) for n in SIZES]
        for name, call in calls.items():
            cells = []
            for net in nets:
                took, answer = fastest(lambda call=call, net=net: call(net), rounds)
                cells.append(f"{took:.1f}{'' if answer.exact else ' *'}{'' if took < PROMISED[net.n] else ' LATE'}")
            print(f"{kind + ', ' + name:26}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
    print("* a good answer, not proven to be the best")


def worse() -> None:
    """How often the set of the greatest sum has a worse ring (its worst link) than ours."""
    links, paths = dgx_1v()
    devices = [Device("cuda", i) for i in range(8)]
    print("\nDGX-1V, sets of free GPUs where pack has a worse ring than select, of all sets")
    print(f"{'free':>6}" + "".join(f"{f'k = {k}':>10}" for k in range(2, 8)))
    total, of = 0, 0
    for free in range(3, 9):
        row = []
        for k in range(2, 8):
            if k >= free:
                row.append("")
                continue
            sets = list(combinations(range(8), free))
            count = 0
            for places in sets:
                net = graph([devices[place] for place in places], links)
                ours = select(net, k)
                fleet = pack(paths, places, k)
                assert fleet is not None
                theirs = order(graph([devices[place] for place in fleet.places], links))
                ring = order(net.among(ours.places))
                count += CLASSES.index(theirs.bottleneck) < CLASSES.index(ring.bottleneck)
            row.append(f"{count}/{len(sets)}")
            total, of = total + count, of + len(sets)
        print(f"{free:>6}" + "".join(f"{cell:>10}" for cell in row), flush=True)
    print(f"{total} of {of}")


CLASSES = ("SYS", "NV1", "NV2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    times(args.rounds)
    worse()


if __name__ == "__main__":
    main()
