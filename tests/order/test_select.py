"""The best k, and groups: against brute force; and where a sum over pairs goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.order import Graph, graph, groups, order, pack, select, simple, static
from hwal.order.ring import key
from hwal.topology import Device, Link
from tests.order.machines import MATRICES, dgx_1v, islands, machine, matrix, net, nets
from tests.order.test_ring import best_by_force, with_a_better_link


def worth(network: Graph, places: tuple[int, ...]) -> tuple[int, int, int, list[int]]:
    """The objective of `job`, by the rings of all orders."""
    part = network.among(places)
    rings = [key(part, ring) for ring in _rings(len(places))]
    low = max(ring[0] for ring in rings)
    total = max(ring[2] for ring in rings if ring[0] == low)
    return low, total, -len({network.numa[p] for p in places}), [-p for p in places]


def _rings(k: int) -> Iterator[tuple[int, ...]]:
    from itertools import permutations

    return ((0, *rest) for rest in permutations(range(1, k)))


@pytest.mark.parametrize("name", MATRICES)
def test_published_machines_by_brute_force(name: str) -> None:
    network = net(name)
    for k in range(2, min(network.n, 6)):
        answer = select(network, k)
        assert answer.places == max(combinations(range(network.n), k), key=lambda places: worth(network, places)), k
        assert answer.exact


@given(nets(4, 6), st.data())
def test_any_machine_by_brute_force(network: Graph, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, network.n - 1))
    must = data.draw(st.lists(st.integers(0, network.n - 1), max_size=k, unique=True))
    sets = [places for places in combinations(range(network.n), k) if set(must) <= set(places)]
    found = select(network, k, must)
    assert found.places in sets
    assert worth(network, found.places)[:3] == max(worth(network, places)[:3] for places in sets)


@given(nets(4, 6), st.data())
def test_what_must_not_change_the_best(network: Graph, data: st.DataObject) -> None:
    """Other numbers give a set and blocks of the same worth; a better link never a worse bottleneck."""
    other = network.among(data.draw(st.permutations(range(network.n))))
    better = with_a_better_link(network, data)
    k = data.draw(st.integers(2, network.n))
    one, renamed, more = (worth(net, select(net, k).places)[:3] for net in (network, other, better))
    assert one == renamed and more[0] >= one[0]
    size = data.draw(st.sampled_from([d for d in range(2, network.n + 1) if network.n % d == 0]))
    one_cut, renamed_cut, more_cut = (inside(net, list(groups(net, size).blocks)) for net in (network, other, better))
    assert one_cut == renamed_cut and more_cut[0] >= one_cut[0]


def test_one_and_all() -> None:
    network = net("dgx-1v")
    assert select(network, 1).places == (0,)
    assert select(network, 8).places == tuple(range(8))
    assert select(network, 8).bottleneck == "NV2"
    assert select(network, 2).places == (0, 3)


def test_what_has_to_be_among_many_is() -> None:
    many = islands([5] * 4, "NV4", "SYS")
    for k in (1, 2, 7, 20):
        for must in ([], [17], [3, 17]):
            if len(must) <= k:
                assert set(must) <= set(select(many, k, must).places) and len(select(many, k, must).places) == k


def test_a_uniform_fabric_fills_one_node() -> None:
    network = graph(*machine([["X" if a == b else "NV12" for b in range(8)] for a in range(8)], (0, 0, 0, 1, 1, 1, 1, 1)))
    assert select(network, 4).places == (3, 4, 5, 6)
    assert select(network, 2).places == (0, 1)
    assert select(network, 6).places == (0, 3, 4, 5, 6, 7)


def test_a_sum_over_pairs_hides_the_bottleneck() -> None:
    """DGX-1V: on some of its subsets of four the fleet's objective takes a set whose ring is worse."""
    devices, links = machine(matrix("dgx-1v"))
    worse = []
    for subset in combinations(range(8), 6):
        free = [devices[i] for i in subset]
        chosen = pack(links, list(subset), 4)
        assert chosen is not None
        ours = graph(free, links)
        job = ours.among(select(ours, 4).places)
        fleet = graph([devices[i] for i in chosen.places], links)
        ranks = {name: i for i, name in enumerate(("SYS", "NV1", "NV2"))}
        if ranks[order(fleet).bottleneck or ""] < ranks[order(job).bottleneck or ""]:
            worse.append(subset)
    assert worse


def test_many_devices_are_grown() -> None:
    network = islands([8] * 8, "XGMI", "PCIE")
    answer = select(network, 8)
    assert (answer.places, answer.exact, answer.bottleneck) == (tuple(range(8)), False, "XGMI")


# groups


def cuts(left: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to cut devices into blocks."""
    if not left:
        yield []
        return
    for others in combinations(left[1:], size - 1):
        block = (left[0], *others)
        for rest in cuts(tuple(p for p in left if p not in block), size):
            yield [block, *rest]


def inside(network: Graph, cut: list[tuple[int, ...]]) -> tuple[int, int]:
    pairs = [pair for block in cut for pair in combinations(block, 2)]
    return min(network.level[a][b] for a, b in pairs), sum(network.speed[a][b] for a, b in pairs)


@given(nets(4, 6), st.sampled_from((2, 3)))
def test_groups_by_brute_force(network: Graph, size: int) -> None:
    if network.n % size:
        return
    answer = groups(network, size)
    assert sorted(answer.places) == list(range(network.n)) and answer.exact
    best = max(inside(network, cut) for cut in cuts(tuple(range(network.n)), size))
    assert inside(network, list(answer.blocks)) == best


def test_groups_of_known_machines() -> None:
    assert groups(net("a100-pcie-pairs"), 2).blocks == ((0, 1), (2, 3))
    assert groups(net("6+2-sockets"), 2).blocks[-1] == (6, 7) or (6, 7) in groups(net("6+2-sockets"), 2).blocks
    dgx = groups(net("dgx-1v"), 4)
    assert set(dgx.blocks) == {(0, 1, 2, 3), (4, 5, 6, 7)} and dgx.bottleneck == "NV1"
    pairs = groups(net("dgx-1v"), 2)
    assert pairs.bottleneck == "NV2" and len(pairs.blocks) == 4
    assert groups(net("dgx-1v"), 8).blocks == (tuple(range(8)),)
    assert groups(net("dgx-1v"), 1).bottleneck is None


def test_blocks_stand_in_a_ring() -> None:
    """MI250: two dies a package; packages hang together in a ring, and neighbours in it stand side by side."""
    rows = [["SYS"] * 8 for _ in range(8)]
    for a, b, name in ((0, 1, "NV4"), (2, 3, "NV4"), (4, 5, "NV4"), (6, 7, "NV4")):
        rows[a][b] = rows[b][a] = name
    for a, b in ((0, 4), (1, 5), (4, 2), (5, 3), (2, 6), (3, 7), (6, 0), (7, 1)):
        rows[a][b] = rows[b][a] = "NV1"
    answer = groups(graph(*machine(rows)), 2)
    assert answer.blocks == ((0, 1), (4, 5), (2, 3), (6, 7))


def test_many_groups_are_grown() -> None:
    network = islands([8] * 8, "XGMI", "PCIE")
    answer = groups(network, 8)
    assert (len(answer.blocks), answer.bottleneck, answer.exact) == (8, "XGMI", False)
    assert groups(islands([8] * 9, "NV18", "NV18"), 8).exact


def test_blocks_of_many_that_no_greedy_cut_finds() -> None:
    """A ring of 40 devices, and a few chords that lead astray: pairs that all are linked exist."""
    near = {frozenset((i, (i + 1) % 40)) for i in range(40)} | {frozenset((i, i + 2)) for i in range(0, 36, 4)}
    shuffled = list(range(40))
    random.Random(3).shuffle(shuffled)
    rows = [["X" if a == b else "NV2" if {a, b} in near else "SYS" for b in shuffled] for a in shuffled]
    answer = groups(graph(*machine(rows)), 2)
    assert answer.bottleneck == "NV2" and sorted(answer.places) == list(range(40))


def test_brute_force_of_the_ring_knows_the_optimum() -> None:
    assert best_by_force(net("dgx-1v")) == (0, 3, 2, 1, 5, 6, 7, 4)
    assert select(graph([Device("cuda", 3), Device("cuda", 5)], []), 2).places == (0, 1)


def test_as_fleets_allocate() -> None:
    """NVIDIA's own cases of its best-effort policy, on a DGX-1V: NVLinks count 100 each, the PCIe path 10 (SYS) to 50 (PIX)."""
    plain, links = dgx_1v()
    everything = list(range(8))
    cases: list[tuple[list[int], list[int], int, tuple[int, ...] | None]] = [
        ([0, 2, 4, 5], [], 2, (4, 5)),
        ([0, 4, 5, 6], [], 2, (5, 6)),
        ([0, 3, 1], [], 2, (0, 3)),
        ([0, 1, 4], [], 2, (0, 4)),
        (everything, [4], 1, (4,)),
        (everything, [4], 2, (4, 7)),
        (everything, [4], 4, (4, 5, 6, 7)),
        (everything[1:], [0, 1, 2, 3], 4, None),
        (everything, [0, 2, 4, 6], 4, (0, 2, 4, 6)),
        (everything, [1, 2, 3, 4, 5, 6], 4, None),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], 1, None),
    ]
    for available, required, k, expected in cases:
        answer = pack(links, available, k, required)
        assert (answer and tuple(sorted(answer.places))) == expected, (available, required, k)
    without = pack(plain, everything, 4)
    assert without is not None and "not known" in without.why


def test_sets_that_are_fixed() -> None:
    """The static policy's tables for a DGX-1V are the cut that its links make; what is given away is no longer free."""
    _, links = dgx_1v()
    for k, sets in ((1, range(8)), (2, ((0, 3), (1, 2), (4, 7), (5, 6))), (4, ((0, 1, 2, 3), (4, 5, 6, 7))), (8, (range(8),))):
        free = list(range(8))
        for expected in sets:
            answer = static(links, range(8), free, k)
            assert answer is not None and answer.places == ((expected,) if isinstance(expected, int) else tuple(expected))
            free = [device for device in free if device not in answer.places]
        assert static(links, range(8), free, k) is None
    assert all(static(links, range(8), list(range(8)), k) is None for k in (0, 3, 5, 6, 7, 9))
    for required, k, places in (
        ((4,), 2, (4, 7)),
        ((0, 2, 4, 6), 4, None),
        ((4, 5, 6, 7), 4, (4, 5, 6, 7)),
        ((1, 2, 3), 2, None),
    ):
        answer = static(links, range(8), list(range(8)), k, required)
        assert (answer and answer.places) == places


def test_the_first_that_come() -> None:
    _, links = dgx_1v()
    answer = simple(links, range(8), 4, [4])
    assert answer is not None and (answer.places, answer.bottleneck) == ((4, 0, 1, 2), "SYS")
    assert simple(links, range(1, 8), 4, [0]) is None


def test_packing_many_devices_is_greedy() -> None:
    devices = list(range(20))
    links = [Link(a, b, "NV2" if a // 4 == b // 4 else "SYS") for a, b in combinations(devices, 2)]
    answer = pack(links, devices, 4, required=[9])
    assert answer is not None and answer.places == (8, 9, 10, 11) and not answer.exact
