"""The ROCm backend under the probe suite, on hosts written by hand; and what is its alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

import pytest

import hwal_rocm
from hwal.host import RecordedHost
from hwal.testing.hosts import load_all
from hwal.testing.probes import Expected, ProbeSuite
from hwal.topology import Device
from hwal_rocm.launch import visible_variables
from hwal_rocm.visible import visible
from tests.backends import gpus

backend = hwal_rocm.backend
HOSTS = {name.removeprefix("rocm-"): host for name, host in load_all(gpus.HOSTS).items() if name.startswith("rocm-")}
MATRIX = {"bf16": "matrix cores", "fp16": "matrix cores", "fp32": "vector units"}


def row(arch: str, outer: int, numa: int, **more: Any) -> Mapping[str, Any]:
    cores = tuple(range(16)) if numa == 0 else tuple(range(16, 32))
    facts = {"arch": arch, "name": f"AMD {arch}", "id": f"GPU-{0xA0000 + outer:016x}", "outer": outer, "numa": numa}
    native = MATRIX if arch >= "gfx90a" or arch.startswith("gfx94") else None
    facts |= {"memory_bytes": 64 << 30, "cores": cores, "threads": 16, "pci": gpus.bus(outer)}
    return facts | ({"native": native} if native else {}) | more


def halves(arch: str, n: int) -> tuple[Mapping[str, Any], ...]:
    return tuple(row(arch, i, int(i >= max(n // 2, 1))) for i in range(n))


def blocked(*says: str) -> Expected:
    return Expected(state="blocked", says=says)


def wired(edges: Mapping[tuple[int, int], int]) -> tuple[str, ...]:
    """Eight GPUs, each its own root port, four on a host bridge."""
    return tuple(
        "XGMI" if pair in edges else "PHB" if (pair[0] < 4) == (pair[1] < 4) else "SYS" for pair in combinations(range(8), 2)
    )


WHOLE = f"GPU-{0xA0000:016x}"
PARTS = tuple(row("gfx942", i, int(i >= 2), id=f"{WHOLE}/{i}", part_of=WHOLE) for i in range(4))
HIVES = {pair: 1 for pair in combinations(range(8), 2) if (pair[0] < 4) == (pair[1] < 4)}
MI300 = halves("gfx942", 8)

EXPECTED = {
    "mi250x-8": Expected(halves("gfx90a", 8), links=wired(gpus.MI250), says=("8 × AMD gfx90a, amdgpu 6.14.14",)),
    "mi210-hives": Expected(halves("gfx90a", 8), links=wired(HIVES)),
    "mi300x-8": Expected(MI300, links=("XGMI",) * 28),
    "mi300x-cpx": Expected(PARTS, links=("XGMI",) * 6, says=("4 devices are partitions of 1 GPUs",)),
    "in-use": Expected(
        tuple({**MI300[i], "users": int(i == 2), "used_bytes": (50 if i == 5 else 1) << 30} for i in range(8)),
        links=("XGMI",) * 28,
    ),
    "mi50": Expected(
        tuple(row("gfx906", i, i, native={"fp16": "vector units", "fp32": "vector units"}) for i in range(2)), links=("SYS",)
    ),
    "rx6800": Expected((row("gfx1030", 0, 0, native={"fp32": "vector units"}),)),
    "masks": Expected((MI300[5], MI300[4]), links=("XGMI",), says=("both set", "6 of 8 GPUs are hidden by masks")),
    "masked-all": blocked("HIP_VISIBLE_DEVICES=-1"),
    "no-permission": blocked("may not open /dev/kfd", "render"),
    "no-node": blocked("there is no /dev/kfd"),
    "container-hidden": blocked("8 AMD GPUs are in the machine, and this container was given none", "--device=/dev/kfd"),
    "no-driver": blocked("1 AMD GPU on PCI (0000:10:00.0), and amdgpu does not drive them"),
    "other-torch": Expected(halves("gfx942", 2), links=("XGMI",), says=("torch 2.8.0+cu128 was built for NVIDIA's GPUs",)),
}


class TestRocmProbe(ProbeSuite):
    backend = backend
    hosts: ClassVar = {name: (host, EXPECTED[name]) for name, host in HOSTS.items()}


def test_links_are_counted_by_their_speed() -> None:
    """Hops are 1 for each of these; the bundle's speed tells how many links it has."""
    links = {(link.a, link.b): link for link in backend.probe(HOSTS["mi250x-8"]).links}
    assert (links[0, 1].count, links[0, 1].bandwidth, links[0, 1].path) == (4, 200e9, "PHB")
    assert (links[0, 6].count, links[0, 2].count, links[0, 5].count) == (2, 1, None)


@pytest.mark.parametrize("lost", ["simd_count 304\n", "cpu_cores_count 0\n", "cpu_cores_count 0\nsimd_count 304\n"])
def test_a_node_of_which_half_is_told_is_no_cpu(lost: str) -> None:
    recording = HOSTS["mi300x-8"].recording
    path = "/sys/class/kfd/kfd/topology/nodes/4/properties"
    assert lost in recording.files[path]
    probe = backend.probe(
        RecordedHost(replace(recording, files={**recording.files, path: recording.files[path].replace(lost, "")}))
    )
    assert probe.state == "blocked" and "KFD's node 4" in probe.reason and "nodes/4/properties" in (probe.hint or "")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (("00 02 02 02", "02 00 02 02"), 2),
        (("00 02 02 01", "02 00 02 02"), None),  # whose is the one?
        (("00 02 02 02", ""), None),
        (("00 00 00 00", "00 00 00 00"), None),
        (("00 0x 0x 0x", "0x 00 0x 0x"), None),
    ],
)
def test_links_are_counted_without_speeds_where_all_are_alike(counts: tuple[str, str], expected: int | None) -> None:
    recording = gpus.kfd(90402, gpus.every(4), 4, "")
    silent = {path: text.replace("min_bandwidth 50000", "min_bandwidth 0") for path, text in recording.files.items()}
    alike = ("00 02 02 02", "02 00 02 02", "02 02 00 02", "02 02 02 00")
    told = {f"/sys/bus/pci/devices/{gpus.bus(i)}/xgmi_num_links": f"{text}\n" for i, text in enumerate((*counts, *alike[2:]))}
    links = backend.probe(RecordedHost(replace(recording, files=silent | told))).links
    assert (links[0].count, links[5].count) == (expected, 2)
    assert {link.count for link in backend.probe(RecordedHost(replace(recording, files=silent))).links} == {None}


DEVICES = [Device("rocm", i, id=f"GPU-{i:x}", outer=i) for i in range(8)]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, list(range(8))),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "3"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6"}, [4, 5, 6]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-6,1"}, [6, 1]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, [6, 4]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "3"}, []),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "GPU_DEVICE_ORDINAL": "1,0", "HIP_VISIBLE_DEVICES": "0"}, [5]),
        ({"HIP_VISIBLE_DEVICES": "GPU-6"}, []),  # chips' numbers are ROCR's alone
        ({"HIP_VISIBLE_DEVICES": "1,9,2"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_masks_stack(env: dict[str, str], expected: list[int]) -> None:
    left, _ = visible(DEVICES, env.get)
    assert [device.outer for device in left] == expected


def test_what_a_process_is_given() -> None:
    chosen = [DEVICES[6], DEVICES[4]]
    assert visible_variables(chosen, lambda _: None) == {"HIP_VISIBLE_DEVICES": "6,4"}
    assert visible_variables(chosen, {"ROCR_VISIBLE_DEVICES": "4,5,6"}.get) == {"HIP_VISIBLE_DEVICES": "2,0"}
    assert visible_variables(chosen, {"ROCR_VISIBLE_DEVICES": "GPU-4,GPU-6"}.get) == {"HIP_VISIBLE_DEVICES": "1,0"}


def test_what_is_given_shows_just_that() -> None:
    for name in ("mi300x-8", "masks", "mi250x-8"):
        recording = HOSTS[name].recording
        chosen = backend.probe(HOSTS[name]).devices[::-1][:2]
        env = {**recording.env, **visible_variables(chosen, recording.env.get)}
        again = backend.probe(RecordedHost(replace(recording, env=env)))
        assert [device.id for device in again.devices] == [device.id for device in chosen]
