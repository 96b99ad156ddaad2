"""Rings and chains: against brute force, against known optima, and by what must not change them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, permutations
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.order import Graph, graph, order
from hwal.order.bound import bound
from hwal.order.large import large
from hwal.order.ring import key, threshold, worst
from hwal.topology import Device, Link
from tests.order.machines import MATRICES, islands, machine, matrix, net, nets


def best_by_force(network: Graph, chain: bool = False) -> tuple[int, ...]:
    """The best of all orders; of equals the lowest. A ring begins with device 0."""
    fixed = () if chain else (0,)
    every = (fixed + rest for rest in permutations(range(len(fixed), network.n)))
    return max(every, key=lambda places: (key(network, places, chain), [-p for p in places]))


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("chain", (False, True), ids=("ring", "chain"))
def test_published_machines_by_brute_force(name: str, chain: bool) -> None:
    network = net(name)
    answer = order(network, chain)
    assert answer.places == best_by_force(network, chain) and answer.exact


@given(nets(), st.booleans())
def test_any_machine_by_brute_force(network: Graph, chain: bool) -> None:
    answer = order(network, chain)
    assert answer.exact
    assert answer.places == best_by_force(network, chain)


def test_known_optima() -> None:
    assert order(net("dgx-1v")).places == (0, 3, 2, 1, 5, 6, 7, 4)
    assert order(net("dgx-1v")).bottleneck == "NV2"
    assert order(net("v100-other-mesh")).bottleneck == "NV2"
    assert order(net("a100-pcie-pairs")).places == (0, 1, 2, 3)
    assert order(net("a100-pcie-pairs")).bottleneck == "SYS"
    assert order(net("6+2-sockets")).bottleneck == "SYS"


def test_a_chain_need_not_close() -> None:
    rows = [["X", "NV1", "SYS"], ["NV1", "X", "NV1"], ["SYS", "NV1", "X"]]
    network = graph(*machine(rows))
    assert (order(network).bottleneck, order(network, chain=True).bottleneck) == ("SYS", "NV1")
    assert order(network, chain=True).places == (0, 1, 2)


@given(nets(), st.randoms(use_true_random=False))
def test_other_numbers_give_the_same_worth(network: Graph, chance: random.Random) -> None:
    shuffled = list(range(network.n))
    chance.shuffle(shuffled)
    other = network.among(shuffled)
    assert key(other, order(other).places) == key(network, order(network).places)


@given(nets(), st.data())
def test_a_faster_link_never_lowers_the_worst(network: Graph, data: st.DataObject) -> None:
    better = with_a_better_link(network, data)
    for chain in (False, True):
        before, after = (worst(n, order(n, chain).places, chain) for n in (network, better))
        assert after >= before


def with_a_better_link(network: Graph, data: st.DataObject) -> Graph:
    """The machine with one link of the best level there is."""
    a, b = data.draw(st.sampled_from(list(combinations(range(network.n), 2))))
    level = [list(row) for row in network.level]
    level[a][b] = level[b][a] = network.levels - 1
    return replace(network, level=tuple(map(tuple, level)))


@given(nets(), st.booleans())
def test_no_order_passes_the_bound(network: Graph, chain: bool) -> None:
    assert threshold(network, chain) <= bound(network, chain)


def test_few_devices() -> None:
    one = graph([Device("cuda", 0)], [])
    assert (order(one).places, order(one).bottleneck, order(one).exact) == ((0,), None, True)
    none = graph([], [])
    assert order(none).places == ()
    assert order(net("2x5090")).bottleneck == "PHB"


def test_a_uniform_fabric_keeps_its_order() -> None:
    network = islands([4, 4], "NV18", "NV18")
    assert order(network).places == tuple(range(8))
    assert "proven" in order(network).why
    mixed = graph(*machine([["X" if a == b else "NV18" for b in range(4)] for a in range(4)], (0, 1, 0, 1)))
    assert order(mixed).places == (0, 1, 3, 2), "fewest changes of NUMA node"


# what makes a link better


def test_a_pair_without_p2p_goes_through_the_host() -> None:
    """GeForce boards: PIX without P2P is no better than across the sockets."""
    devices, links = machine([["X", "PIX", "SYS"], ["PIX", "X", "NODE"], ["SYS", "NODE", "X"]])
    blocked = [replace(link, p2p=False) if link.class_ == "PIX" else link for link in links]
    network = graph(devices, blocked)
    assert network.level[0][1] == 0 and network.level[0][1] < network.level[1][2]
    assert network.names[0][1] == "PIX without P2P"
    assert graph(devices, links).level[0][1] == 2


def test_every_class_that_is_printed_has_its_place() -> None:
    names = ["", "SYS", "NODE", "PHB", "PXB", "PIX", "PSB", "NV1", "NV2", "NV18"]
    links = [Link(0, i + 1, name) for i, name in enumerate(names)]
    level = graph([Device("cuda", i) for i in range(len(names) + 1)], links).level[0][1:]
    assert list(level) == sorted(set(level)), "each better than the one before it"


def test_what_is_not_known_is_never_best() -> None:
    network = graph([Device("cuda", i) for i in range(3)], [Link(0, 1, "SYS"), Link(1, 2, "")])
    assert network.level[0][1] > network.level[1][2] == network.level[0][2]
    assert network.name_of(0) == "unknown"


def test_a_guess_never_decides_between_classes() -> None:
    """A speed, guessed or not, ranks pairs of one class only."""
    fast = Link(0, 1, "SYS", bandwidth=900e9, source="guess")
    network = graph([Device("cuda", i) for i in range(3)], [fast, Link(0, 2, "PIX"), Link(1, 2, "SYS")])
    assert network.level[1][2] < network.level[0][1] < network.level[0][2]
    assert any(text.startswith("SYS 900") for text in network.assumed)


def test_nearness_counts_where_the_class_says_nothing() -> None:
    """rocm-smi prints PCIE for every pair: its weight tells the same socket (40) from another (72)."""
    pairs = {(0, 2): 40, (1, 3): 40}
    links = [Link(a, b, "PCIE", distance=pairs.get((a, b), 72)) for a, b in combinations(range(4), 2)]
    network = graph([Device("rocm", i) for i in range(4)], links)
    assert order(network).places == (0, 1, 3, 2)
    assert order(network, chain=True).places == (0, 2, 1, 3)


# many devices


def test_sixteen_in_islands() -> None:
    """Two machines of eight on one board: the ring crosses between them twice, and no more."""
    network = islands([8, 8], "NV6", "SYS")
    shuffled = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    begun = perf_counter()
    answer = order(network.among(shuffled))
    assert perf_counter() - begun < 10  # 0.6 s by itself
    assert answer.exact and answer.bottleneck == "SYS"
    assert key(network.among(shuffled), answer.places)[1] == -2


def test_seventy_two_in_a_uniform_fabric() -> None:
    network = islands([4] * 18, "NV18", "NV18")
    answer = order(network)
    assert answer.exact and answer.places == tuple(range(72))


def test_seventy_two_in_islands_are_certified() -> None:
    network = islands([8] * 9, "XGMI", "PCIE")
    shuffled = list(range(72))
    random.Random(1).shuffle(shuffled)
    answer = order(network.among(shuffled))
    assert not answer.exact and answer.certified and "proven" in answer.why
    low, at, _, changes = key(network.among(shuffled), answer.places)
    assert (low, at, changes) == (0, -9, -9), "one crossing from island to island"


@pytest.mark.parametrize("chain", (False, True), ids=("ring", "chain"))
def test_the_links_of_a_torus_are_enough_for_its_ring(chain: bool) -> None:
    """Each of 72 devices has four neighbours among 71: greedy orders run into corners, and a ring without others exists."""
    names = list(range(72))
    random.Random(2).shuffle(names)
    near = {frozenset((names[i], names[(i + 9) % 72])) for i in range(72)}
    near |= {frozenset((names[i], names[i // 9 * 9 + (i + 1) % 9])) for i in range(72)}
    rows = [["X" if a == b else "NV1" if {a, b} in near else "SYS" for b in range(72)] for a in range(72)]
    answer = order(graph(*machine(rows)), chain)
    assert answer.bottleneck == "NV1" and not answer.exact and "is proven" in answer.why


@given(nets(4, 7), st.booleans())
def test_the_heuristic_gives_orders(network: Graph, chain: bool) -> None:
    places = large(network, chain)
    assert sorted(places) == list(range(network.n))
    assert key(network, places, chain) <= key(network, order(network, chain).places, chain)
    assert chain or (places[0] == 0 and places[1] < places[-1])


def test_matrices_are_symmetric() -> None:
    for name in MATRICES:
        rows = matrix(name)
        assert rows == [list(column) for column in zip(*rows, strict=True)], name
