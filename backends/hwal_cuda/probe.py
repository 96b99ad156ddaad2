"""Host -> Probe: NVIDIA's GPUs as the CUDA of this process will enumerate them, or what stands in their way.

NVML is asked only where files say that a driver is there, so that machines without one pay nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from hwal import pci
from hwal.errors import RecordError
from hwal.host import Host
from hwal.topology import Device, straggler
from hwal.values import Probe
from hwal_cuda import ask, present, virtual
from hwal_cuda import links as wiring
from hwal_cuda import report as nvml
from hwal_cuda.present import ABSENT, CONTROL, MODULE, WSL, has_driver
from hwal_cuda.report import Gpu, Instance, Report
from hwal_cuda.visible import MASK, ORDER, Seen, visible
from hwal_gpu.builds import unfit
from hwal_gpu.speeds import peak

REBOOT = "reboot, or unload the old module: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"


def probe(host: Host) -> Probe:
    """The GPUs behind the driver that files tell of; blocked where something stands between them and this process."""
    module = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", host.read(MODULE) or "")
    cards = present.cards(host)
    if not has_driver(host):
        return _without_driver(host, cards)
    blocked = _nodes(host, module[1] if module else None)
    if blocked is not None:
        return blocked
    try:
        report = ask.report(host)
    except RecordError as error:
        return _blocked(f"NVML's answer makes no sense: {error.what} ({error.where})", "nvidia-smi; is the driver whole?")
    if report is None:
        hint = "pip install nvidia-ml-py, or put nvidia-smi on PATH"
        return _blocked("NVIDIA's driver is here, and neither nvidia-ml-py nor nvidia-smi to ask it", hint)
    blocked = _trouble(host, report, module[1] if module else None, cards)
    return blocked or _ready(host, report, cards)


def _blocked(reason: str, hint: str) -> Probe:
    return Probe("cuda", "blocked", reason, hint)


# what stands in the way


def _without_driver(host: Host, cards: list[str]) -> Probe:
    if not cards:
        return Probe("cuda", "absent", ABSENT)
    driver = (host.link(f"{pci.DEVICES}/{cards[0]}/driver") or "").rpartition("/")[2]
    count = f"{len(cards)} NVIDIA GPU{'s' * (len(cards) > 1)} on PCI ({', '.join(cards[:4])}{' …' * (len(cards) > 4)})"
    if driver == "nouveau":
        return _blocked(
            f"{count}, driven by nouveau, which cannot run CUDA", "install NVIDIA's driver (ubuntu-drivers install)"
        )
    if driver == "vfio-pci":
        return _blocked(f"{count}, handed to virtual machines (vfio-pci)", "run inside the virtual machine that has them")
    return _blocked(f"{count}, and no driver is loaded", "ubuntu-drivers install, or modprobe nvidia; then nvidia-smi")


def _nodes(host: Host, module: str | None) -> Probe | None:
    """Device nodes that are missing (a container that was not given any), or that this process may not open."""
    if host.system != "linux" or host.may_open(WSL) is not None:
        return None
    if host.may_open(CONTROL) is None:
        reason = (
            f"driver {module} is loaded, but there is no {CONTROL}: a container without GPUs, or nodes that were never made"
        )
        return _blocked(
            reason, "docker run --gpus all …; in Kubernetes a limit of nvidia.com/gpu; else sudo nvidia-modprobe -u -c=0"
        )
    for path in (CONTROL, *(f"/dev/{name}" for name in host.names("/dev") if re.fullmatch(r"nvidia\d+", name))):
        if host.may_open(path) is False:
            return _blocked(f"this user may not open {path}", f"ls -l {path}; sudo usermod -aG video $USER, then log in again")
    return None


def _trouble(host: Host, report: Report, module: str | None, cards: list[str]) -> Probe | None:
    trouble = report.trouble
    if trouble is not None:
        if trouble.code == nvml.MISMATCH:
            loaded = f" ({module} is loaded)" if module else ""
            return _blocked(f"the driver's library is of another version than its kernel module{loaded}", REBOOT)
        if trouble.code == nvml.LIBRARY_NOT_FOUND:
            reason = "NVIDIA's kernel module is loaded, but libnvidia-ml.so.1 is not here"
            return _blocked(
                reason, "docker run --gpus all …, with NVIDIA_DRIVER_CAPABILITIES=compute,utility; else reinstall the driver"
            )
        if trouble.code == nvml.DRIVER_NOT_LOADED:
            return _blocked("NVIDIA's driver is installed but not loaded", "sudo modprobe nvidia; dmesg | grep -i nvrm")
        if trouble.code == nvml.NO_PERMISSION:
            return _blocked(
                "this user may not ask NVIDIA's driver", f"ls -l {CONTROL}; sudo usermod -aG video $USER, then log in again"
            )
        return _blocked(f"NVML fails: {trouble.text} (error {trouble.code})", "nvidia-smi; dmesg | grep -i nvrm")
    if not report.gpus:
        if not cards:
            return Probe("cuda", "absent", "NVIDIA's driver is here, and no GPU")
        return _blocked(f"{len(cards)} NVIDIA GPUs on PCI, none of which the driver has", "dmesg | grep -i nvrm; nvidia-smi")
    if all(gpu.trouble for gpu in report.gpus):
        return _blocked(
            "; ".join(gpu.lost for gpu in report.gpus), "sudo nvidia-smi -r, or reboot; dmesg | grep -i xid tells why"
        )
    waiting = [
        gpu.index for gpu in report.gpus if gpu.fabric and gpu.fabric.state in ("in progress", "not started") and _switched(gpu)
    ]
    if waiting:
        which = ", ".join(map(str, waiting))
        reason = f"the NVLink fabric of GPU {which} is not ready: CUDA gives error 802 (system not yet initialized)"
        return _blocked(reason, "sudo systemctl restart nvidia-fabricmanager; its version must be the driver's")
    return None


def _switched(gpu: Gpu) -> bool:
    return any(port.remote == "switch" for port in gpu.ports)


# what is there


def _ready(host: Host, report: Report, cards: list[str]) -> Probe:
    working = [gpu for gpu in report.gpus if gpu.trouble is None]
    seen = visible(working, host.env(MASK), host.env(ORDER))
    notes = [*seen.notes, *(f"{gpu.lost}: left out" for gpu in report.gpus if gpu.trouble)]
    if not seen.gpus:
        hint = f"unset {MASK}, or name GPUs in it: 0 to {len(working) - 1}, or UUIDs"
        return _blocked(notes[0] if notes else f"{MASK} leaves none of {len(working)} GPUs", hint)
    devices = tuple(_device(host, gpu, place, seen.instance) for place, gpu in enumerate(seen.gpus))
    found = tuple(wiring.links(seen.gpus, report.pairs))
    notes += _told(report, seen, working, cards)
    notes += virtual.notes(virtual.shares(devices, {gpu.index: gpu.virtual for gpu in seen.gpus}))
    cost = straggler(devices)
    notes += [f"mixed kinds ({cost}): a run over all waits for the slowest"] if cost else []
    notes += wiring.notes(seen.gpus, found)
    bars = unfit(host, "cu", "install torch's build for CUDA (+cu126, +cu128 …)", "pip install 'tensorflow[and-cuda]'")
    return Probe("cuda", "ready", _what(devices, report), devices=devices, links=found, notes=tuple(notes), unfit=bars)


def _device(host: Host, gpu: Gpu, place: int, instance: Instance | None) -> Device:
    near = pci.cores(host, gpu.pci)
    numa = pci.numa_node(host, gpu.pci)
    native, flops = _native(gpu.capability), peak(gpu.name)
    memory = instance.memory if instance else gpu.memory
    known = {"memory_bytes": (memory, "driver"), "numa": (numa, "sysfs"), "cores": (near, "sysfs"), "threads": (near, "sysfs")}
    sources = {name: source for name, (value, source) in known.items() if value is not None}
    sources |= {"arch": "driver"} if gpu.capability else {}
    sources |= {"native": "table"} if native else {}
    sources |= {"flops": "table"} if flops else {}
    sources |= {"ports": "driver"} if gpu.ports else {}
    sources |= {name: "driver" for name, value in (("used_bytes", gpu.used), ("users", gpu.users)) if value is not None}
    device = Device(
        "cuda",
        place,
        name=gpu.name,
        id=gpu.uuid,
        memory_bytes=memory or None,
        numa=numa,
        arch=f"sm_{gpu.capability[0]}{gpu.capability[1]}" if gpu.capability else None,
        cores=near,
        threads=len(near) if near else None,
        native=native,
        sources=sources,
        pci=gpu.pci,
        ports=tuple(port.speed * 1e6 for port in gpu.ports if port.speed),
        outer=gpu.index,
        flops=flops,
        used_bytes=gpu.used,
        users=None if gpu.users is None else sum(host.link("/proc/self") != str(process) for process in gpu.users),
    )
    if instance is None:
        return device
    return replace(
        device,
        name=instance.name or gpu.name,
        id=instance.uuid,
        part_of=gpu.uuid,
        ports=(),
        flops=None,
        used_bytes=None,
        users=None,
    )


def _native(capability: tuple[int, int] | None) -> dict[str, str]:
    """What a generation computes natively (CUDA C++ Programming Guide, "Compute Capabilities"); fp16 before fp32 where tensor
    cores make it worth loss scaling."""
    if capability is None:
        return {}
    if capability >= (8, 0):
        return dict.fromkeys(("bf16", "tf32", "fp16"), "tensor cores") | {"fp32": "CUDA cores"}
    if capability >= (7, 0):
        return {"fp16": "tensor cores", "fp32": "CUDA cores"}
    if capability == (6, 0):
        return {"fp32": "CUDA cores", "fp16": "CUDA cores"}
    return {"fp32": "CUDA cores"}


def _what(devices: tuple[Device, ...], report: Report) -> str:
    names = Counter(device.name or "NVIDIA GPU" for device in devices)
    what = ", ".join(f"{count} × {name}" for name, count in names.items())
    cuda = f", CUDA {report.cuda // 1000}.{report.cuda % 1000 // 10}" if report.cuda else ""
    return f"{what}{f', driver {report.driver}' if report.driver else ''}{cuda}"


def _told(report: Report, seen: Seen, working: list[Gpu], cards: list[str]) -> list[str]:
    notes = []
    hidden = len(working) - len(seen.gpus)
    if hidden and not seen.notes:
        notes.append(f"{hidden} of {len(working)} GPUs are hidden by {MASK}")
    missing = len(cards) - len(report.gpus)
    if report.gpus and missing > 0:
        notes.append(
            f"{len(cards)} GPUs are on PCI, the driver shows {len(report.gpus)}: a container's share, or one fell off the bus"
        )
    moved = [(place, gpu.index) for place, gpu in enumerate(seen.gpus) if place != gpu.index]
    if moved:
        pairs = ", ".join(f"{place} = {index}" for place, index in moved[:8])
        notes.append(f"CUDA's numbers are not nvidia-smi's: {pairs}")
    return notes
