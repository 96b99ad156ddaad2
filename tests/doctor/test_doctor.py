"""`hwal doctor`: findings about software and limits, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwal.cli import main
from hwal.doctor import examine
from hwal.finding import Finding
from hwal.host import Output, RecordedHost, Recording
from tests.backends import gpus
from tests.backends.test_gpu_launch import port
from tests.doctor.test_cuda import CUDA, on_cuda, told


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
