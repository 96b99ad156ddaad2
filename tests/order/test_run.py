"""What a run takes when no devices are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwal.choose import choose
from hwal.host import RecordedHost
from hwal.order import fastest, for_a_run
from hwal.registry import Registry
from hwal.topology import Device, straggler
from hwal.values import Choice, Target
from hwal_gpu.speeds import peak
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
        ("rocm-in-use", 7, [0, 1, 2, 3, 4, 6, 7]),
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


@pytest.mark.parametrize("machine", ["cuda-dgx-1v", "cuda-hgx-h100", "rocm-mi250x-8", "cuda-dgx-2"])
@pytest.mark.parametrize("busy", [(0, 1, 2, 3), (5,), (0, 2, 4, 6)])
def test_none_in_use_is_taken_while_a_free_one_idles(machine: str, busy: tuple[int, ...]) -> None:
    host = RecordedHost.load(gpus.HOSTS / machine)
    probe = Registry(host).load(machine.partition("-")[0]).probe(host)
    devices = [replace(device, users=int(device.index in busy)) for device in probe.devices]
    for count in range(1, len(devices) + 1):
        picked = for_a_run(devices, probe.links, count).devices
        used, idle = sum(device.in_use for device in picked), len(devices) - len(busy)
        assert (len(picked), used) == (count, max(0, count - idle))


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


def kinds(*given: tuple[int, str | None, float | None]) -> list[Device]:
    return [Device("cuda", 0, name=name, flops=flops) for count, name, flops in given for _ in range(count)]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (kinds((3, "A100", 312e12)), None),
        ([], None),
        (
            kinds((2, "A100", 312e12), (1, "T4", 65e12)),
            "2 × A100, 1 × T4: at the pace of T4 they do 195 of 689 TFLOPS; 2 × A100 alone do 624",
        ),
        (
            kinds((1, "A100", 312e12), (7, "A10", 125e12)),
            "1 × A100, 7 × A10: at the pace of A10 they do 1000 of 1187 TFLOPS",
        ),
        (kinds((1, "A100", 312e12), (1, "X9", None)), "1 × A100, 1 × X9; how fast each is, is not known"),
    ],
)
def test_what_mixed_kinds_cost(devices: list[Device], expected: str | None) -> None:
    assert straggler(devices) == expected


def test_the_fastest_kind_is_told_by_its_peak_where_all_are_known() -> None:
    chosen, others = fastest([Device("cuda", 0, name="A10", arch="sm_86", flops=125e12), *kinds((1, "A100", 312e12))])
    assert [device.name for device in chosen] == ["A100"] and others == ("A10",)
    chosen, _ = fastest([Device("cuda", 0, name="A10", arch="sm_86", flops=125e12), *kinds((1, "X9", None))])
    assert [device.name for device in chosen] == ["A10"], "else by the generation"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10", 125.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 NVL", 835.0),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L40", 181.0),
        ("NVIDIA H20", None),  # cut: not to be taken for its relatives
        ("NVIDIA A800-SXM4-80GB", 312.0),
        ("NVIDIA H800", 989.0),
        ("NVIDIA GH200 480GB", 989.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA A10-24Q", None),
        ("GRID A100D-1-10C", None),
        ("NVIDIA A30", 165.0),
        ("NVIDIA A40", 149.7),
        ("NVIDIA A16", None),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA RTX A6000 Laptop GPU", None),
        ("Quadro RTX 6000", None),
        ("Tesla V100-SXM2-32GB", 125.0),
        ("Tesla V100-PCIE-16GB", 112.0),
        ("Tesla V100S-PCIE-32GB", 130.0),
        ("Tesla V100-FHHL-16GB", None),
        ("Tesla P100-SXM2-16GB", 21.2),
        ("Tesla P100-PCIE-12GB", 18.7),
        ("AMD Instinct MI210", 181.0),
        ("NVIDIA H100 MIG 3g.40gb", None),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("AMD Instinct MI300X OAM", 1307.0),
        ("AMD Instinct MI250X / MI250", 191.5),
        (None, None),
    ],
)
def test_peaks_by_name(name: str | None, expected: float | None) -> None:
    assert peak(name) == (None if expected is None else expected * 1e12)
