"""The CUDA backend under the probe suite, on hosts written by hand; and what is its alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

import hwal_cuda
from hwal.host import RecordedHost, Recording
from hwal.testing.hosts import load_all
from hwal.testing.probes import Expected, ProbeSuite, check
from hwal.topology import Device
from hwal_cuda.launch import visible_variables
from hwal_cuda.report import Fabric, Gpu, Instance
from hwal_cuda.visible import visible
from tests.backends import gpus

backend = hwal_cuda.backend
HOSTS = {name.removeprefix("cuda-"): host for name, host in load_all(gpus.HOSTS).items() if name.startswith("cuda-")}
BF16 = {"bf16": "tensor cores", "tf32": "tensor cores", "fp16": "tensor cores", "fp32": "CUDA cores"}
FP16 = {"fp16": "tensor cores", "fp32": "CUDA cores"}
NATIVE = {6: {"fp32": "CUDA cores", "fp16": "CUDA cores"}, 7: FP16}


def row(kind: str, outer: int, numa: int, **more: Any) -> Mapping[str, Any]:
    name, (major, minor), gib = gpus.KINDS[kind]
    facts = {"name": name, "id": gpus.uuid(outer), "outer": outer, "numa": numa, "memory_bytes": gib << 30}
    facts |= {"arch": f"sm_{major}{minor}", "pci": gpus.bus(outer), "native": NATIVE.get(major, BF16)}
    cores = tuple(range(16)) if numa == 0 else tuple(range(16, 32))
    return facts | {"cores": cores, "threads": 16} | more


def halves(kind: str, n: int) -> tuple[Mapping[str, Any], ...]:
    return tuple(row(kind, i, 0 if i < max(n // 2, 1) else 1) for i in range(n))


def pairs(n: int, name: str) -> tuple[str, ...]:
    return (name,) * (n * (n - 1) // 2)


def of_matrix(name: str) -> tuple[str, ...]:
    rows = gpus.rows(name)
    return tuple(rows[a][b] for a in range(len(rows)) for b in range(a + 1, len(rows)))


def blocked(*says: str) -> Expected:
    return Expected(state="blocked", says=says)


H100 = halves("h100", 8)
MASKED = "GPUs are hidden by CUDA_VISIBLE_DEVICES"
INSTANCE = {"part_of": gpus.uuid(0), "ports": ()}

EXPECTED = {
    "dgx-1v": Expected(halves("v100", 8), links=of_matrix("dgx-1v"), says=("8 × Tesla V100", "CUDA 13.0")),
    "dgx-2": Expected(halves("v100", 16), links=pairs(16, "NV6")),
    "dgx-a100": Expected(halves("a100", 8), links=pairs(8, "NV12")),
    "hgx-h100": Expected(H100, links=pairs(8, "NV18"), silent=("MIG", MASKED, "P2P")),
    "hgx-h20": Expected(halves("h20", 8), links=pairs(8, "NV18")),
    "hgx-b200": Expected(halves("b200", 8), links=pairs(8, "NV18")),
    "gb200-tray": Expected(halves("gb200", 4), links=pairs(4, "NV18")),
    "gb10": Expected(halves("gb10", 1)),
    "p100-8": Expected(halves("p100", 8), links=pairs(8, "PIX")),
    "a100-sxm-mesh": Expected(tuple({"numa": n} for n in (3, 2, 1, 0)), links=pairs(4, "NV4")),
    "a100-pcie-pairs": Expected(halves("a100-pcie", 4), links=of_matrix("a100-pcie-pairs")),
    "3090-bridge": Expected((row("3090", 0, 0), row("3090", 1, 0)), links=("NV4",)),
    "4090-8": Expected(halves("4090", 8), links=pairs(8, "PIX"), says=("P2P: no pair",)),
    "a6000-link-down": Expected(
        tuple(row("a6000", i, 0) for i in range(3)), links=("NV3", "NODE", "NODE"), says=("GPU 0: 1 of 4 NVLinks are down",)
    ),
    "t4": Expected(halves("t4", 1)),
    "mixed": Expected(
        (row("a100-pcie", 1, 0), row("a100-pcie", 2, 0), row("t4", 0, 0)),
        links=pairs(3, "NODE"),
        says=("CUDA's numbers are not nvidia-smi's: 0 = 1", "mixed kinds"),
    ),
    "mig": Expected(H100[2:], links=pairs(6, "NV18"), says=("GPU 0 is in MIG mode (3 instances): left out",)),
    "mig-all": Expected(
        (row("h100", 0, 0, id=gpus.MIG[0].uuid, name=gpus.MIG[0].name, memory_bytes=40 << 30, **INSTANCE),),
        says=("one MIG instance",),
    ),
    "mig-chosen": Expected((row("h100", 0, 0, id=gpus.MIG[1].uuid, name=gpus.MIG[1].name, memory_bytes=20 << 30, **INSTANCE),)),
    "masked": Expected((H100[6], H100[2], H100[4]), links=pairs(3, "NV18"), says=(f"5 of 8 {MASKED}", "0 = 6, 1 = 2, 2 = 4")),
    "masked-uuid": Expected((H100[3], H100[1]), links=("NV18",), says=(f"6 of 8 {MASKED}",)),
    "masked-empty": blocked("CUDA_VISIBLE_DEVICES is empty"),
    "masked-twice": blocked("names GPU 1 twice: CUDA then sees none"),
    "masked-cut": Expected((H100[2],), says=("'99' names no GPU here, and all that follows it is ignored",)),
    "in-use": Expected(
        tuple(
            {**H100[i], "users": users, "used_bytes": used}
            for i, (users, used) in enumerate(
                ((2, 30 << 30), (1, 1 << 30), (0, 1 << 29), (None, None), (0, 75 << 30), *[(None, None)] * 3)
            )
        ),
        links=pairs(8, "NV18"),
    ),
    "vgpu": Expected(
        tuple(row("a40-vgpu", i, i, flops=None) for i in range(2)),
        links=("SYS",),
        says=("vGPU): 0 (NVIDIA A40-24Q), 1 (NVIDIA A40-24Q)", "take from their speed", "P2P: no pair"),
    ),
    "lost": Expected(
        tuple(row("h100", i, 0) for i in range(8) if i != 5),
        links=pairs(7, "NV18"),
        says=("GPU 5 (0000:38:00.0) has fallen off the bus: left out",),
    ),
    "container-hidden": blocked("there is no /dev/nvidiactl", "docker run --gpus all"),
    "container-two": Expected(H100[:2], links=("NV18",), says=("8 GPUs are on PCI, the driver shows 2",)),
    "no-driver": blocked("2 NVIDIA GPUs on PCI (0000:10:00.0, 0000:18:00.0), and no driver is loaded"),
    "nouveau": blocked("nouveau"),
    "vfio": blocked("vfio-pci"),
    "no-permission": blocked("this user may not open /dev/nvidia0", "usermod -aG video"),
    "driver-mismatch": blocked("another version than its kernel module (580.105.08 is loaded)", "reboot"),
    "no-library": blocked("libnvidia-ml.so.1 is not here"),
    "no-fabric": blocked("error 802", "nvidia-fabricmanager"),
    "other-torch": Expected(H100, links=pairs(8, "NV18"), says=("torch 2.8.0+cpu was built for CPUs only",)),
    "smi-only": Expected(halves("a100-pcie", 4), links=of_matrix("a100-pcie-pairs"), says=("driver 580.105.08",)),
    "nothing-to-ask": blocked("pip install nvidia-ml-py"),
    "wsl2": Expected(halves("2080", 1)),
}


class TestCudaProbe(ProbeSuite):
    backend = backend
    hosts: ClassVar = {name: (host, EXPECTED[name]) for name, host in HOSTS.items()}


def test_every_host_is_what_it_was_made_from() -> None:
    made = gpus.all_hosts()
    kept = {name: host.recording for name, host in load_all(gpus.HOSTS).items() if name.startswith(("cuda-", "rocm-"))}
    assert kept == made, "python -m tests.backends.gpus writes them"


# what NVML told, by the speed of links


def test_links_are_counted_and_summed() -> None:
    links = backend.probe(HOSTS["dgx-1v"]).links
    assert [(link.bandwidth, link.count, link.path, link.p2p) for link in links[:4]] == [
        (25781e6, 1, "SYS", True),
        (25781e6, 1, "SYS", True),
        (51562e6, 2, "SYS", True),
        (51562e6, 2, "SYS", True),
    ]
    assert links[4].bandwidth is None and links[4].count is None


def with_fabrics(*places: Fabric | None) -> Recording:
    report = gpus.switched("h100", len(places), 18, 4)
    told = tuple(replace(gpu, fabric=place) for gpu, place in zip(report.gpus, places, strict=True))
    return gpus.host(replace(report, gpus=told), "")


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (Fabric("completed", 0, "ab", 0), Fabric("completed", 0, "ab", 0), "NV18"),  # clique 0 is a clique
        (Fabric("completed", 0, "ab", 0), Fabric("completed", 0, "ab", 1), "SYS"),
        (Fabric("completed", 0, "ab", 0), Fabric("completed", 0, "cd", 0), "SYS"),
        (Fabric("not supported"), Fabric("not supported"), "NV18"),
        (None, None, "NV18"),
    ],
)
def test_switches_join_one_fabric(one: Fabric | None, other: Fabric | None, name: str) -> None:
    assert backend.probe(RecordedHost(with_fabrics(one, other))).links[0].class_ == name


def test_numa_that_firmware_does_not_tell() -> None:
    recording = HOSTS["t4"].recording
    files = {path: "-1\n" if path.endswith("numa_node") else text for path, text in recording.files.items()}
    device = backend.probe(RecordedHost(replace(recording, files=files))).devices[0]
    assert device.numa is None and "numa" not in device.sources


def test_an_answer_that_makes_no_sense() -> None:
    nonsense: list[Any] = [{"gpus": 3}, [], "x", {"driver": 580}]
    for told in nonsense:
        probe = backend.probe(RecordedHost(replace(HOSTS["t4"].recording, drivers={gpus.READER: told})))
        check(backend, probe)
        assert probe.state == "blocked" and "makes no sense" in probe.reason


# masks

GPUS = [gpus.gpu("h100", i) for i in range(12)]
PARTED = [replace(GPUS[0], mig=True, instances=(Instance("MIG-aa"), Instance("MIG-ab"))), *GPUS[1:4]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, list(range(12))),
        ("0", [0]),
        ("3,1", [3, 1]),
        (" 2 , 0", [2, 0]),
        ("1gpu2", [1]),
        ("+1,2", [1, 2]),
        ("007", [7]),
        ("11,10x", [11, 10]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("2,-1,3", [2]),
        ("2,,3", [2]),
        ("x", []),
        ("NoDevFiles", []),
        ("12", []),
        ("1,12,2", [1]),
        ("1,2,1", []),
        (f"1,{gpus.uuid(1)}", []),
        (gpus.uuid(4), [4]),
        ("GPU-10000004", [4]),
        ("GPU-1", []),  # which of them?
        ("GPU-1000000a,2", [10, 2]),
        (f"{gpus.uuid(4)},GPU-ffff,2", [4]),
        ("MIG-aa", []),
    ],
)
def test_masks_are_read_as_cuda_reads_them(mask: str | None, expected: list[int]) -> None:
    seen = visible(GPUS, mask)
    assert [gpu.index for gpu in seen.gpus] == expected
    assert (mask is None or bool(seen.notes)) or len(expected) == mask.count(",") + 1


@pytest.mark.parametrize(
    ("mask", "expected", "part"),
    [
        (None, [1, 2, 3], None),
        ("MIG-aa", [0], "MIG-aa"),
        ("MIG-ab,1", [0], "MIG-ab"),
        ("MIG-a", [], None),
        ("0", [0], "MIG-aa"),
        ("1,MIG-aa", [1], None),
        (gpus.uuid(0), [0], "MIG-aa"),
    ],
)
def test_one_instance_or_whole_gpus(mask: str | None, expected: list[int], part: str | None) -> None:
    seen = visible(PARTED, mask)
    assert [gpu.index for gpu in seen.gpus] == expected
    assert (seen.instance.uuid if seen.instance else None) == part


def test_the_order_that_cuda_counts_in() -> None:
    mixed: list[Gpu] = [gpus.gpu("t4", 0), gpus.gpu("a100", 1), gpus.gpu("t4", 2), gpus.gpu("h100", 3)]
    assert [gpu.index for gpu in visible(mixed, None).gpus] == [3, 1, 0, 2]
    assert [gpu.index for gpu in visible(mixed, "0,1").gpus] == [3, 1]
    assert [gpu.index for gpu in visible(mixed, "0,1", "PCI_BUS_ID").gpus] == [0, 1]


def test_what_a_process_is_given() -> None:
    devices = backend.probe(HOSTS["masked"]).devices
    assert visible_variables(devices[:2]) == {"CUDA_VISIBLE_DEVICES": f"{gpus.uuid(6)},{gpus.uuid(2)}"}
    known = [Device("cuda", 0, outer=6), Device("cuda", 1, id="GPU-1", outer=2)]
    assert visible_variables(known) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "6,2"}
    part = backend.probe(HOSTS["mig-chosen"]).devices
    assert visible_variables(part) == {"CUDA_VISIBLE_DEVICES": gpus.MIG[1].uuid}


def test_what_is_given_shows_just_that() -> None:
    """The mask of a choice, read back, is the choice: also below a mask."""
    for name in ("hgx-h100", "masked", "mixed", "a6000-link-down"):
        devices = backend.probe(HOSTS[name]).devices
        chosen = devices[::-1][:2]
        recording = HOSTS[name].recording
        again = backend.probe(RecordedHost(replace(recording, env={**recording.env, **visible_variables(chosen)})))
        assert [device.id for device in again.devices] == [device.id for device in chosen]
