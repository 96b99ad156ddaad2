"""`hwal doctor`: each finding where it belongs, and silence where nothing is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hwal_cuda
from hwal.cli import main
from hwal.doctor import examine
from hwal.finding import Finding
from hwal.host import Output, RecordedHost, Recording
from hwal_cuda.health import READER, Health, Ward
from hwal_cuda.report import Report, Trouble
from tests.backends import gpus
from tests.backends.test_gpu_launch import port

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
        ("dgx-1v", "2.13.0+cu130", "CUDA 12"),
        ("dgx-1v", "2.8.0+cu126", None),
        ("t4", "2.13.0+cu130", None),
        ("dgx-1v", "2.13.0+cpu", None),
    ],
)
def test_gpus_that_torch_has_no_code_for(kind: str, torch: str, remedy: str | None) -> None:
    found = [each for each in on_cuda(name=kind, versions={"torch": torch}) if each.what == "torch has no code for a GPU"]
    assert [each.remedy for each in found] == ([] if remedy is None else [f"install torch's build for {remedy}"])
    assert all("cuda 0" in each.evidence and torch in each.evidence for each in found)


def test_what_is_blocked_is_an_error() -> None:
    host = RecordedHost(CUDA["driver-mismatch"])
    found = examine(host, [hwal_cuda.backend.probe(host)], {"cuda": hwal_cuda.backend})
    assert [finding.level for finding in found] == ["error"] and "reboot" in found[0].remedy


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"torch": "2.8.0", "torch_xla": "2.8.1", "torchvision": "0.23.0"}, []),
        ({"torch": "2.13.0+cpu", "torch_xla": "2.8.1"}, [("error", "torch_xla")]),
        ({"torch": "2.13.0", "torchvision": "0.23.0"}, [("error", "torchvision")]),
        ({"torch": "2.13.0", "torchaudio": "2.12.0"}, [("error", "torchaudio")]),
        ({"torch_xla": "2.8.1"}, [("warning", "torch_xla")]),
        (
            {"torch": "2.7.0", "intel-extension-for-pytorch": "2.8.0"},
            [("error", "intel-extension-for-pytorch"), ("note", "intel-extension-for-pytorch")],
        ),
        ({"torch": "2.8.0", "oneccl-bind-pt": "2.8.0"}, [("note", "oneccl-bind-pt")]),
        ({"torch": "nightly", "torch_xla": "2.8.1"}, [("warning", "torch_xla")]),
        ({}, []),
    ],
)
def test_versions(versions: dict[str, str], expected: list[tuple[str, str]]) -> None:
    found = examine(RecordedHost(Recording(versions=versions)), [], {})
    assert [(finding.level, finding.subject) for finding in found] == expected


ASKED = (
    'nvidia-nccl-cu12==2.27.5; platform_system == "Linux" and platform_machine == "x86_64"',
    "nvidia-cudnn-cu12==9.10.2.21; platform_system == 'Linux'",
    'nvidia-nccl-cu13==2.29.1; platform_system == "Windows"',
    "nvidia-cufft-cu12 (==11.3.3) ; platform_system == 'Linux'",
    'optree>=0.13.0; extra == "optree"',
    'triton==3.5.0; python_version < "3.10"',
    "filelock",
)
FITTING = {"torch": "2.9.0", "nvidia-nccl-cu12": "2.27.5", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cufft-cu12": "11.3.3"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"nvidia-nccl-cu12": "2.21.5"}, [("warning", "nvidia-nccl-cu12", "collectives fail or hang")]),
        ({"nvidia-nccl-cu12": None}, [("error", "nvidia-nccl-cu12", "collectives fail or hang")]),
        (
            {"nvidia-cudnn-cu12": "9.1.0", "nvidia-cufft-cu12": None},
            [("error", "nvidia-cufft-cu12", "torch does not"), ("warning", "nvidia-cudnn-cu12", "torch does not")],
        ),
    ],
)
def test_libraries_that_torch_is_built_with(change: dict[str, str | None], expected: list[tuple[str, str, str]]) -> None:
    versions = {name: version for name, version in {**FITTING, **change}.items() if version is not None}
    found = examine(RecordedHost(Recording(versions=versions, requires={"torch": ASKED})), [], {})
    assert [(each.level, each.subject) for each in found] == [(level, name) for level, name, _ in expected]
    assert all(text in each.consequence for each, (_, _, text) in zip(found, expected, strict=True))
    arm = Recording(versions={"torch": "2.9.0"}, requires={"torch": ASKED[:1]}, machine="aarch64")
    assert examine(RecordedHost(arm), [], {}) == ()


OPEN, INTEL = "mpirun (Open MPI) 4.1.4\n", "Intel(R) MPI Library for Linux* OS, Version 2021.17\n"


@pytest.mark.parametrize(
    ("versions", "mpirun", "expected"),
    [
        ({}, None, None),
        ({}, OPEN, None),
        ({"impi-rt": "2021.17.2"}, INTEL, None),
        ({"impi-rt": "2021.17.2"}, None, ("warning", "there is no mpirun")),
        ({"impi-rt": "2021.17.2"}, OPEN, ("warning", "mpirun is of another MPI than the one that is installed beside torch")),
        ({"impi-rt": "2021.17.2"}, "HYDRA build details:\n", ("warning", "mpirun is of another MPI than the one that is")),
        ({"mpi4py": "4.1.0"}, None, ("note", "there is no mpirun")),
        ({"mpi4py": "4.1.0"}, OPEN, None),
        ({"impi-rt": "2021.17.2"}, "something else", None),
    ],
)
def test_which_mpi_there_is(versions: dict[str, str], mpirun: str | None, expected: tuple[str, str] | None) -> None:
    commands = {} if mpirun is None else {"mpirun --version": Output(mpirun)}
    found = examine(RecordedHost(Recording(versions=versions, commands=commands)), [], {})
    assert [each.level for each in found] == ([] if expected is None else [expected[0]])
    assert expected is None or found[0].what.startswith(expected[1])


LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n"
LOCKED = f"{LIMITS}Max locked memory         65536                65536                bytes\n"
FILES = f"{LIMITS}Max open files            1024                 524288               files\n"
SHM = "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/mounts": SHM}, [("error", "/dev/shm")]),
        ({"/proc/mounts": SHM.replace("65536k", "4g")}, [("warning", "/dev/shm")]),
        ({"/proc/mounts": SHM.replace("65536k", "64g")}, []),
        ({"/proc/mounts": SHM.replace(",size=65536k", "")}, []),
        ({"/proc/self/limits": FILES}, [("warning", "ulimit -n")]),
        ({"/proc/self/limits": FILES.replace("1024 ", "65536")}, []),
        ({"/proc/self/limits": LOCKED}, []),
        ({"/proc/self/limits": LOCKED, "/sys/class/infiniband/mlx5_0": ""}, [("error", "ulimit -l")]),
        ({"/proc/self/limits": LOCKED.replace("65536 ", "unlimited "), "/sys/class/infiniband/mlx5_0": ""}, []),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}, [("warning", "CPU quota")]),
    ],
)
def test_limits(files: dict[str, str], expected: list[tuple[str, str]]) -> None:
    recording = CUDA["hgx-h100"]
    found = on_cuda(files={**recording.files, **files})
    assert [(finding.level, finding.subject) for finding in found] == expected


def test_a_shell_that_is_bound_to_too_few_cpus() -> None:
    assert [each.subject for each in on_cuda(affinity=(0,))] == ["CPU affinity"]
    assert on_cuda(affinity=tuple(range(8))) == []
    assert on_cuda(affinity=(0, 1), cpu_count=2) == [], "there are no more"


def translated(name: str, kind: str) -> list[Finding]:
    recording = CUDA[name]
    links = {f"/sys/bus/pci/devices/{gpus.bus(i)}/iommu_group": f"../../../kernel/iommu_groups/{i}" for i in range(8)}
    files = {f"/sys/kernel/iommu_groups/{i}/type": f"{kind}\n" for i in range(8)}
    return on_cuda(name=name, links=links, files={**recording.files, **files})


def test_translated_paths() -> None:
    found = translated("p100-8", "DMA-FQ")
    assert told(found) == [("warning", "cuda", "an IOMMU translates what devices send each other over PCIe")]
    assert "devices 0, 1, 2" in found[0].evidence and "iommu=pt" in found[0].remedy
    acs = translated("p100-8", "identity")
    assert told(acs) == [("warning", "cuda", "ACS is on between devices below one switch")] and "0-1 0-2" in acs[0].evidence
    together = dict.fromkeys((f"/sys/bus/pci/devices/{gpus.bus(i)}/iommu_group" for i in range(8)), "../iommu_groups/4")
    assert on_cuda(name="p100-8", links=together) == []
    assert translated("hgx-h100", "DMA") == [], "NVLink does not pass there"


def test_adapters_of_two_kinds() -> None:
    """Which of them ranks shall use is a person's choice, where neither has clearly more bandwidth."""
    recording, free = CUDA["hgx-h100"], {"/proc/self/limits": LOCKED.replace("65536 ", "unlimited ")}
    for rate, expected in ((200, [("note", "network", "InfiniBand and Ethernet adapters are both up")]), (800, [])):
        ports = port("mlx5_0", "InfiniBand", rate) | port("mlx5_1", "Ethernet", 200)
        found = on_cuda(files={**recording.files, **free, **ports})
        assert told(found) == expected
    assert on_cuda(files={**recording.files, **free, **port("mlx5_0", "InfiniBand")}) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hosts = str(gpus.HOSTS)
    assert main(["doctor", "--from", f"{hosts}/laptop"]) == 0
    assert capsys.readouterr().out == "nothing found\n"
    assert main(["doctor", "--from", f"{hosts}/cuda-driver-mismatch"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "error: cuda: hardware is here, and cannot be used",
        "  seen:  the driver's library is of another version than its kernel module (580.105.08 is loaded)",
    ]
    assert main(["doctor", "--json", "--from", f"{hosts}/cuda-4090-8"]) == 0
    document = json.loads(capsys.readouterr().out)
    notes = [("note", "how the GPUs are was not asked"), ("note", "pairs without P2P")]
    assert [(each["level"], each["what"]) for each in document["findings"]] == notes
    paper = tmp_path / "paper.json"
    assert main(["devices", "--json", "--from", f"{hosts}/cuda-t4"]) == 0
    paper.write_text(capsys.readouterr().out)
    assert main(["doctor", "--from", str(paper)]) == 2
    assert "not how they are" in capsys.readouterr().err
