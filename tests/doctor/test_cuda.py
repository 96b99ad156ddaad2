"""Findings about NVIDIA's GPUs: each where it belongs, and silence where nothing is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import hwal_cuda
from hwal.doctor import examine
from hwal.finding import Finding
from hwal.host import RecordedHost
from hwal_cuda.health import READER, Health, Ward
from hwal_cuda.report import Report, Trouble
from tests.backends import gpus

WELL = Health(0, 1, 41, 90, 700000, 700000, (1, 1), False, False, (5, 5), (16, 16), True, True, (0, 0), 0)
CUDA = gpus.cuda_hosts()


def on_cuda(*healths: Health, name: str = "hgx-h100", report: Report | None = None, **more: Any) -> list[Finding]:
    """Findings on a machine of GPUs that are well but for those given."""
    recording = CUDA[name]
    given = {health.index: health for health in healths}
    ward = Ward(tuple(given.get(i, replace(WELL, index=i)) for i in range(8)))
    told = {} if report is None else {gpus.READER: report.to_dict()}
    host = RecordedHost(replace(recording, drivers={**recording.drivers, READER: ward.to_dict(), **told}, **more))
    probe = hwal_cuda.backend.probe(host)
    return list(examine(host, [probe], {"cuda": hwal_cuda.backend}))


def told(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.subject, finding.what) for finding in findings]


def test_nothing_is_wrong() -> None:
    assert on_cuda() == []


@pytest.mark.parametrize(
    ("change", "level", "what"),
    [
        ({"throttle": 0x5}, "warning", "clocks are cut by the power cap"),
        ({"throttle": 0x40}, "warning", "the hardware has cut clocks because it is too hot"),
        ({"throttle": 0x68}, "warning", "the hardware has cut clocks because it is too hot"),  # one cause, told once
        ({"throttle": 0x08}, "warning", "the hardware has cut clocks to half or less"),
        ({"throttle": 0x80}, "warning", "an external power brake has cut clocks"),
        ({"temperature": 85}, "warning", "it is almost too hot"),
        ({"power": 500000}, "warning", "its power cap is below the default"),
        ({"pending": True}, "error", "rows of its memory wait to be remapped"),
        ({"pending": True, "failed": True}, "error", "rows of its memory cannot be remapped any more"),
        ({"uncorrected": 2}, "error", "its memory has had errors"),
        ({"fabric": 0x1}, "warning", "its NVLink fabric is not whole"),
        ({"fabric": 0x12}, "warning", "its NVLink fabric is not whole"),
        ({"ecc": (1, 0)}, "note", "a change of ECC waits for a reset"),
        ({"mig": (0, 1)}, "note", "a change of MIG mode waits for a reset"),
        ({"link_errors": 7}, "warning", "its NVLinks have had errors"),
        ({"width": (8, 16)}, "warning", "PCIe has fewer lanes than it could"),
        ({"width": (8, 16), "busy": False}, "warning", "PCIe has fewer lanes than it could"),
        ({"generation": (1, 5)}, "warning", "PCIe is slower than it could be"),
    ],
)
def test_one_gpu(change: dict[str, Any], level: str, what: str) -> None:
    findings = on_cuda(replace(WELL, index=3, **change))
    assert told(findings) == [(level, "cuda 3", what)]
    assert all(getattr(findings[0], part) for part in ("evidence", "consequence", "remedy"))


@pytest.mark.parametrize(
    "change",
    [
        {"generation": (1, 5), "busy": False},  # idle boards save power
        {"throttle": 0x103},
        {"temperature": 84},
        {"temperature": None, "throttle": None, "ecc": None, "width": None, "generation": None, "power": None},
        {"power": 700001},
        {"fabric": 0x2AA, "uncorrected": 0},
    ],
)
def test_what_is_normal_is_not_told(change: dict[str, Any]) -> None:
    assert on_cuda(replace(WELL, index=3, **change)) == []


def test_all_together() -> None:
    off = on_cuda(replace(WELL, index=1, persistence=False), replace(WELL, index=4, persistence=False))
    assert told(off) == [("note", "cuda", "persistence mode is off")] and off[0].evidence == "off on GPU 1, 4"
    assert ("warning", "cuda", "some GPUs are in MIG mode, others not") in told(on_cuda(replace(WELL, index=2, mig=(1, 1))))
    assert ("warning", "cuda", "GPUs of different kinds") in told(on_cuda(name="mixed"))
    assert ("note", "cuda", "pairs without P2P") in told(on_cuda(name="4090-8"))
    down = [each for each in on_cuda(name="a6000-link-down") if "NVLinks" in each.what]
    assert [(each.subject, each.evidence) for each in down] == [("cuda 0", "1 of 4 are down"), ("cuda 1", "1 of 4 are down")]


@pytest.mark.parametrize(
    ("code", "what", "remedy"),
    [(15, "has fallen off the bus", "reboot"), (16, "needs a reset", "-i 5 -r"), (999, "does not answer: its text", "nvrm")],
)
def test_gpus_that_the_driver_cannot_reach(code: int, what: str, remedy: str) -> None:
    report = gpus.with_gpu(Report.from_dict(CUDA["lost"].drivers[gpus.READER]), 5, trouble=Trouble(code, "its text"))
    for env in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        (finding,) = on_cuda(name="lost", report=report, env=env)
        assert finding.level == "error" and what in finding.what and remedy in finding.remedy
        assert finding.evidence == f"NVML error {code}: its text"


def test_shares_that_a_hypervisor_gives() -> None:
    report = Report.from_dict(CUDA["vgpu"].drivers[gpus.READER])
    shared, pairs = ("note", "cuda", "GPUs that a hypervisor shares out (vGPU)"), ("note", "cuda", "pairs without P2P")
    assert told(on_cuda(name="vgpu")) == [pairs, shared]
    desktop = gpus.with_gpu(gpus.with_gpu(report, 0, name="GRID T4-2B"), 1, virtual=None)
    found = on_cuda(name="vgpu", report=desktop)
    assert ("warning", "cuda 0", "its vGPU profile is one for desktops") in told(found) and shared in told(found)
    passed = gpus.with_gpu(gpus.with_gpu(report, 0, virtual=False), 1, virtual=False)
    assert told(on_cuda(name="vgpu", report=passed)) == [pairs], "NVML knows better than a name"


def test_each_gpu_by_the_number_that_hwal_has_for_it() -> None:
    (finding,) = on_cuda(replace(WELL, index=6, temperature=85), env={"CUDA_VISIBLE_DEVICES": "6,0"})
    assert finding.subject == "cuda 0 (nvidia-smi's 6)"


def test_an_answer_that_makes_no_sense_is_no_all_clear() -> None:
    recording = CUDA["t4"]
    for answer, why in ((None, "has not been asked"), ({"gpus": 3}, "makes no sense")):
        host = RecordedHost(replace(recording, drivers={**recording.drivers, READER: answer}))
        (finding,) = hwal_cuda.backend.diagnose(host, hwal_cuda.backend.probe(host))
        assert finding.level == "note" and why in finding.evidence


def test_hidden_gpus_are_not_examined() -> None:
    assert on_cuda(replace(WELL, index=0, pending=True), env={"CUDA_VISIBLE_DEVICES": "3"}) == []


LINUX = 'platform_system == "Linux"'


@pytest.mark.parametrize(
    ("torch", "asks", "cuda", "driver", "evidence"),
    [
        ("2.14.0+cu141", (), 13000, "580.105.08", "CUDA 14.1; driver 580.105.08 runs CUDA up to 13.0"),
        ("2.8.0+cu128", (), 13000, "580.105.08", None),
        ("2.8.0+cu128", (), 12000, "525.60.13", None),  # within a major version any driver will do
        (
            "2.13.0",
            (f"cuda-toolkit[cudart,nvtx]==13.0.3; {LINUX}",),
            12080,
            "570.86",
            "CUDA 13.0; driver 570.86 runs CUDA up to 12.8",
        ),
        (
            "2.9.1",
            (f"nvidia-cuda-runtime-cu12==12.8.90; {LINUX} and platform_machine == 'x86_64'",),
            11080,
            "520.61",
            "CUDA 12.8",
        ),
        ("2.9.1", ("nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Windows'",), 11080, "520.61", None),
        ("2.13.0+cu130", (), None, "570.86", "CUDA up to 12 (by a table of drivers)"),
        ("2.13.0+cu130", (), None, "580.65", None),
        ("2.13.0+cu130", (), None, None, None),
        ("2.13.0a0+git1", (), 11080, "520.61", None),  # from source: nobody tells
    ],
)
def test_torch_and_the_driver(
    torch: str, asks: tuple[str, ...], cuda: int | None, driver: str | None, evidence: str | None
) -> None:
    report = replace(Report.from_dict(CUDA["hgx-h100"].drivers[gpus.READER]), cuda=cuda, driver=driver)
    asked = {name: pin.partition("==")[2].partition(";")[0] for pin in asks for name in (re.split(r"[\[=]", pin)[0],)}
    found = on_cuda(report=report, versions={"torch": torch, **asked}, requires={"torch": asks})
    what = [("error", "torch", "torch is built for a newer CUDA than the driver has")]
    assert told(found) == ([] if evidence is None else what)
    assert evidence is None or evidence in found[0].evidence


@pytest.mark.parametrize(
    ("kind", "torch", "remedy"),
    [
        ("hgx-b200", "2.6.0+cu126", "CUDA 12.8 or newer"),
        ("hgx-b200", "2.7.0+cu128", None),
        ("gb10", "2.7.0+cu128", None),  # code for sm_120 runs on sm_121
        ("hgx-h100", "2.0.0+cu117", "CUDA 11.8 or newer"),
        ("4090-8", "2.0.0+cu117", None),  # code for sm_86 runs on sm_89
        ("dgx-1v", "2.13.0+cu130", "CUDA 12.6"),
        ("dgx-1v", "2.8.0+cu126", None),
        ("t4", "2.13.0+cu130", None),
        ("dgx-1v", "2.13.0+cpu", None),
    ],
)
def test_gpus_that_torch_has_no_code_for(kind: str, torch: str, remedy: str | None) -> None:
    found = [each for each in on_cuda(name=kind, versions={"torch": torch}) if each.what == "torch has no code for a GPU"]
    assert [each.remedy for each in found] == ([] if remedy is None else [f"install torch's build for {remedy}"])
    assert all("cuda 0" in each.evidence and torch in each.evidence for each in found)


@pytest.mark.parametrize(
    ("capability", "torch", "remedy"),
    [
        ((3, 7), "2.9.0+cu130", "leave it out"),
        ((3, 7), "2.9.0+cu126", "leave it out"),
        ((5, 0), "2.9.0+cu130", "CUDA 12.6"),
        ((6, 1), "2.9.0+cu130", "CUDA 12.6"),
    ],
)
def test_the_remedy_is_a_build_that_has_code_for_the_gpu(capability: tuple[int, int], torch: str, remedy: str) -> None:
    report = replace(gpus.flat("t4", 1, "SYS"), gpus=(gpus.gpu("t4", 0, capability=capability),))
    (finding,) = on_cuda(name="t4", report=report, versions={"torch": torch})
    assert told([finding]) == [("error", "torch", "torch has no code for a GPU")] and remedy in finding.remedy


RUNTIME = 'nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"'


@pytest.mark.parametrize(
    ("kind", "torch", "asks", "machine", "held"),
    [
        ("p100", "2.8.0+cu128", (), "x86_64", "sm_70 and newer"),
        ("p100", "2.8.0+cu129", (), "x86_64", "sm_70 and newer"),
        ("p100", "2.8.0", (RUNTIME,), "x86_64", "sm_70 and newer"),
        ("v100", "2.8.0+cu128", (), "x86_64", None),
        ("v100", "2.10.0+cu128", (), "AMD64", None),
        ("v100", "2.11.0+cu128", (), "AMD64", "sm_75 and newer"),
        ("t4", "2.11.0+cu128", (), "x86_64", None),
        ("p100", "2.8.0+cu126", (), "x86_64", None),
        ("p100", "2.8.0", (), "x86_64", None),  # conda-forge's, say
        ("p100", "2.8.0a0+34c6371d24.nv25.08", (), "x86_64", None),  # NVIDIA's own images
        ("p100", "2.8.0.dev20250601+cu128", (), "x86_64", None),
        ("p100", "2.8.0+cu128", (), "aarch64", None),  # wheels of their own
        ("p100", "2.20.0+cu128", (), "x86_64", None),  # the table knows none
    ],
)
def test_old_gpus_that_torchs_wheel_leaves_out(
    kind: str, torch: str, asks: tuple[str, ...], machine: str, held: str | None
) -> None:
    """Though its CUDA makes code for them."""
    own = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    files = {**CUDA["t4"].files, "site-packages/torch/version.py": own}
    versions = {"torch": torch, **({"nvidia-cuda-runtime-cu12": "12.8.90"} if asks else {})}
    more: dict[str, Any] = {"versions": versions, "requires": {"torch": asks}, "machine": machine, "files": files}
    found = on_cuda(name="t4", report=gpus.flat(kind, 1, "SYS"), **more)
    assert told(found) == ([] if held is None else [("error", "torch", "torch has no code for a GPU")])
    assert all(f"its wheel for {held}" in each.evidence and each.remedy.endswith("CUDA 12.6") for each in found)


def test_what_is_blocked_is_an_error() -> None:
    host = RecordedHost(CUDA["driver-mismatch"])
    found = examine(host, [hwal_cuda.backend.probe(host)], {"cuda": hwal_cuda.backend})
    assert [finding.level for finding in found] == ["error"] and "reboot" in found[0].remedy
