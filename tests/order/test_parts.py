"""Parts of chips (CPX): AMD's own cases of its device plugin, and brute force where there are few."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.cli import main
from hwal.host import RecordedHost
from hwal.order import pack_parts
from hwal.topology import Device, Link
from tests.backends import gpus


def machine(*parts: int) -> tuple[list[Device], list[Link]]:
    """Chips of so many parts each, half of them on each of two NUMA nodes, all linked to all."""
    devices: list[Device] = []
    for chip, count in enumerate(parts):
        node = chip // max(len(parts) // 2, 1)
        devices += [Device("rocm", len(devices) + i, numa=node, part_of=f"chip{chip}") for i in range(count)]
    return devices, [Link(a, b, "XGMI") for a, b in combinations(range(len(devices)), 2)]


def weight(devices: list[Device], chosen: tuple[int, ...]) -> int:
    pairs = [(devices[a], devices[b]) for a, b in combinations(chosen, 2)]
    return sum(10 + 10 * (1 + (a.part_of != b.part_of)) + 10 * (1 + (a.numa != b.numa)) for a, b in pairs)


CPX = machine(8, 8, 8, 8, 8, 8, 8, 7)  # MI300X; one part of the last chip was not recorded
FIRSTS = [16, 24, 32, 40, 48, 56]  # the first parts of six chips


@pytest.mark.parametrize(
    ("k", "free", "required", "expected", "least"),
    [  # ROCm's k8s-device-plugin, besteffort_policy_test.go
        (1, None, (), [56], 0),
        (3, None, (), [56, 57, 58], 90),
        (5, None, (), [56, 57, 58, 59, 60], 300),
        (3, FIRSTS, (), [32, 40, 48], 120),
        (3, FIRSTS, (32,), [32, 40, 48], 120),
        (8, None, (), list(range(8)), 840),
        (7, None, (), list(range(56, 63)), 630),
        (4, range(59, 63), (), [59, 60, 61, 62], 180),
        (4, sorted(set(range(63)) - {56, 57, 58}), (), [59, 60, 61, 62], 180),
        (10, sorted(set(range(63)) - {0, 8, 16, 24, 56, 57}), (), [*range(32, 40), 58, 59], 1510),
    ],
)
def test_amds_own_cases(k: int, free: list[int] | None, required: tuple[int, ...], expected: list[int], least: int) -> None:
    devices, links = CPX
    answer = pack_parts([devices[i] for i in (range(63) if free is None else free)], links, k, required)
    assert answer is not None and list(answer.places) == expected
    assert -answer.total == weight(devices, answer.places) == least
    assert answer.exact == (len({devices[i].part_of for i in expected}) == 1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_no_set_weighs_less(parts: list[int], data: st.DataObject) -> None:
    devices, links = machine(*parts)
    free = sorted(data.draw(st.sets(st.sampled_from(range(len(devices))), min_size=1)))
    k = data.draw(st.integers(1, len(free)))
    answer = pack_parts([devices[i] for i in free], links, k)
    assert answer is not None and len(answer.places) == k and set(answer.places) <= set(free)
    assert -answer.total == min(weight(devices, chosen) for chosen in combinations(free, k))


def test_what_cannot_be() -> None:
    devices, links = machine(2, 2)
    for k, required in ((0, ()), (5, ()), (1, (0, 1)), (2, (7,))):
        assert pack_parts(devices, links, k, required) is None


def test_paths_weigh_too() -> None:
    devices = [Device("rocm", i, numa=0) for i in range(4)]
    kinds = {(0, 1): "PIX", (2, 3): "XGMI"}
    links = [Link(a, b, kinds.get((a, b), "")) for a, b in combinations(range(4), 2)]
    for free, expected in (((0, 1, 2, 3), (2, 3)), ((0, 1, 2), (0, 1))):
        answer = pack_parts([devices[i] for i in free], links, 2)
        assert answer is not None and answer.places == expected


def test_the_command_takes_it_where_devices_are_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert RecordedHost.load(gpus.HOSTS / "rocm-mi300x-cpx").recording.about.startswith("One MI300X in CPX mode")
    arguments = ["devices", "select", "-k", "2", "--objective", "pack", "--with", "2", "--json"]
    assert main([*arguments, "--from", str(gpus.HOSTS / "rocm-mi300x-cpx")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["selected"] == [2, 3] and document["exact"] and "AMD's device plugin" in document["objective"]
