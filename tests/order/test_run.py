"""What a run takes when no devices are named."""

from __future__ import annotations

import pytest

from hwal.choose import choose
from hwal.host import RecordedHost
from hwal.registry import Registry
from hwal.topology import Device
from hwal.values import Choice, Target
from tests.backends import gpus


def taken(machine: str, count: int | None = None, for_all: bool = True) -> Choice:
    host = RecordedHost.load(gpus.HOSTS / machine)
    backend = Registry(host).load(machine.partition("-")[0])
    return choose(Target(), [backend.probe(host)], {backend.name: backend}, count, for_all)


def indices(choice: Choice) -> list[int]:
    return [device.index for device in choice.devices]


@pytest.mark.parametrize(
    ("machine", "count", "expected"),
    [
        ("cuda-dgx-1v", None, [0, 3, 2, 1, 5, 6, 7, 4]),
        ("cuda-dgx-1v", 4, [0, 1, 2, 3]),
        ("cuda-dgx-1v", 2, [0, 3]),
        ("cuda-dgx-1v", 8, [0, 3, 2, 1, 5, 6, 7, 4]),
        ("cuda-a100-pcie-pairs", 2, [0, 1]),
        ("cuda-in-use", 3, [5, 6, 7]),  # on one NUMA node
        ("cuda-in-use", 1, [2]),
        ("rocm-mi250x-8", 2, [0, 1]),
        ("rocm-in-use", 7, [0, 1, 2, 3, 4, 5, 6]),
        ("rocm-in-use", None, [0, 1, 3, 4, 6, 7]),
    ],
)
def test_the_best_of_them(machine: str, count: int | None, expected: list[int]) -> None:
    assert indices(taken(machine, count)) == expected


def test_what_was_chosen_is_told_with_its_reason() -> None:
    assert "the best 4 of 8, their worst link NV1: all sets of 4 of 8 devices were weighed" in taken("cuda-dgx-1v", 4).why
    assert taken("cuda-dgx-1v").why == "8 × Tesla V100-SXM2-32GB, priority 100"
    assert "not mixed with Tesla T4" in taken("cuda-mixed").why


def test_devices_that_others_use() -> None:
    told = taken("cuda-in-use").why
    assert "left out, in use by others: 0 (2 processes, 30.0 of 80.0 GiB, from driver)" in told
    assert "1 (1 process, 1.0 of 80.0 GiB, from driver), 4 (75.0 of 80.0 GiB, from driver)" in told
    enough = taken("cuda-in-use", 6)
    assert len(enough.devices) == 6 and "for want of free ones: 0 (2 processes" in enough.why
    assert len(taken("cuda-in-use", 8).devices) == 8, "and all where all are asked for"


def test_ranks_that_choose_each_for_itself_leave_use_aside() -> None:
    """The process on GPU 0 may be the rank beside this one: they would not agree."""
    choice = taken("cuda-in-use", 8, for_all=False)
    assert indices(choice) == list(range(8)) and "in use" not in choice.why
    assert indices(taken("cuda-in-use", 2, for_all=False)) == [0, 1]


@pytest.mark.parametrize(
    ("users", "used", "expected"),
    [(None, None, False), (0, 0, False), (1, 0, True), (0, 2 << 30, False), (0, 3 << 30, True), (None, 8 << 30, True)],
)
def test_when_a_device_is_in_use(users: int | None, used: int | None, expected: bool) -> None:
    assert Device("cuda", 0, memory_bytes=8 << 30, users=users, used_bytes=used).in_use is expected
    assert not Device("cuda", 0, used_bytes=used).in_use, "of what?"
