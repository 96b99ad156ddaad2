"""A stub of NVIDIA's management library, in C: the real nvidia-ml-py loads it, and hwal asks it what it asks a driver."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from hwal_cuda.report import Gpu, Report

SOURCE = Path(__file__).with_name("stub.c")
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
REMOTES = {"gpu": 0, "npu": 1, "switch": 2}
STATES = ("not supported", "not started", "in progress", "completed")


def build(folder: Path, *without: str) -> None:
    """Compiles libnvidia-ml.so.1 into `folder`, without the symbols named."""
    flags = [f"-DWITHOUT_{name}" for name in without]
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, str(SOURCE), "-o"]
    subprocess.run([*command, str(folder / "libnvidia-ml.so.1")], check=True, capture_output=True, text=True)


def lines(report: Report) -> Iterator[str]:
    """The file that makes the stub tell `report`."""
    if report.trouble is not None:
        yield f"fail.nvmlInit_v2 {report.trouble.code}"
    yield f"driver {report.driver}"
    yield f"cuda {report.cuda}"
    yield f"gpus {len(report.gpus)}"
    for gpu in report.gpus:
        yield from _gpu(gpu)
    for pair in report.pairs:
        yield f"pair.{pair.a}.{pair.b} {LEVELS[pair.path or 'SYS']} {0 if pair.read else 3}"


def _gpu(gpu: Gpu) -> Iterator[str]:
    own = f"gpu.{gpu.index}"
    if gpu.trouble is not None:
        yield f"{own}.fail.nvmlDeviceGetUUID {gpu.trouble.code}"
        return
    facts = {"uuid": gpu.uuid, "name": gpu.name, "pci": gpu.pci and f"0000{gpu.pci.upper()}", "memory": gpu.memory}
    facts["capability"] = gpu.capability and f"{gpu.capability[0]}.{gpu.capability[1]}"
    facts |= {"used": gpu.used, "processes": None if gpu.users is None else " ".join(map(str, gpu.users))}
    facts["mig"] = None if gpu.mig is None else int(gpu.mig)
    facts["virtualization"] = {None: None, False: 1, True: 2}[gpu.virtual]
    yield from (f"{own}.{name} {value}" for name, value in facts.items() if value is not None)
    for i, part in enumerate(gpu.instances):
        told = {"uuid": part.uuid, "name": part.name, "memory": part.memory}
        yield from (f"{own}.mig.{i}.{name} {value}" for name, value in told.items() if value is not None)
    for port in gpu.ports:
        yield f"{own}.link.{port.link} 1 {port.speed or 0} {REMOTES[port.remote or 'gpu']} {port.peer or '0000:05:00.0'}"
    taken = {port.link for port in gpu.ports}
    free = [link for link in range(18) if link not in taken]
    yield from (f"{own}.link.{link} 0" for link in free[: gpu.down])
    if gpu.fabric is not None:
        cluster = int((gpu.fabric.cluster or "00")[:2], 16)
        yield f"{own}.fabric {STATES.index(gpu.fabric.state)} {cluster} {gpu.fabric.clique or 0}"
