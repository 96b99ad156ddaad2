"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the CUDA driver reads them.

NVML knows neither: its order is PCI order, and all GPUs are in it. CUDA enumerates what the mask names, in the mask's order; at
the first entry that names nothing it stops; where an entry stands twice it enumerates none. Numbers are read as strtoul reads
them ("1gpu2" is 1), and count in CUDA's own order, which is fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID. At most one MIG
instance is enumerated, and then no whole GPU.
(CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA Multi-Instance GPU User Guide, "Device Enumeration".)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hwal_cuda.report import Gpu, Instance

MASK, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Seen:
    """What CUDA enumerates: whole GPUs, or one MIG instance of one of them; and what there is to say about the mask."""

    gpus: tuple[Gpu, ...]
    instance: Instance | None = None
    notes: tuple[str, ...] = ()


def cuda_order(gpus: Sequence[Gpu], order: str | None) -> list[Gpu]:
    """CUDA's enumeration without a mask. Fastest first is CUDA's own estimate: by compute capability, then memory, here."""
    if order == "PCI_BUS_ID":
        return list(gpus)
    return sorted(gpus, key=lambda gpu: (gpu.capability or (0, 0), gpu.memory or 0), reverse=True)


def visible(gpus: Sequence[Gpu], mask: str | None, order: str | None = None) -> Seen:
    """The devices that a process with this environment sees. `gpus` are those that work."""
    listed = cuda_order(gpus, order)
    if mask is None:
        whole = tuple(gpu for gpu in listed if not gpu.mig)
        if whole:
            return Seen(whole, None, tuple(_in_mig(gpu) for gpu in listed if gpu.mig))
        with_parts = [gpu for gpu in listed if gpu.instances]
        if with_parts:
            return _one_instance(with_parts[0], with_parts[0].instances[0], sum(len(gpu.instances) for gpu in listed))
        return Seen((), None, tuple(f"GPU {gpu.index} is in MIG mode and has no instance" for gpu in listed))
    if not mask.strip():
        return Seen((), None, (f"{MASK} is empty: no GPU is visible",))
    return _masked(listed, mask)


def _masked(listed: Sequence[Gpu], mask: str) -> Seen:
    chosen: list[Gpu] = []
    shown = " ".join(mask.split())
    for entry in mask.split(","):
        found = _entry(listed, entry.strip())
        if found is None:
            what = f"{MASK}={shown}: {entry.strip()!r} names no GPU here, and all that follows it is ignored"
            return Seen(tuple(chosen), None, (what,))
        gpu, instance = found
        if instance is not None:
            if chosen:
                what = f"{MASK}={shown}: a MIG instance cannot stand beside whole GPUs; it and what follows is ignored"
                return Seen(tuple(chosen), None, (what,))
            return _one_instance(gpu, instance, mask.count(",") + 1)
        if gpu in chosen:
            return Seen((), None, (f"{MASK}={shown} names GPU {gpu.index} twice: CUDA then sees none",))
        chosen.append(gpu)
    return Seen(tuple(chosen))


def _entry(listed: Sequence[Gpu], entry: str) -> tuple[Gpu, Instance | None] | None:
    """What one entry names; None for nothing, a GPU in MIG mode as a whole, or a prefix that several UUIDs have."""
    if entry.startswith("MIG-"):
        parts = [(gpu, part) for gpu in listed for part in gpu.instances if part.uuid.startswith(entry)]
        return parts[0] if len(parts) == 1 else None
    if entry.startswith("GPU-"):
        found = [gpu for gpu in listed if (gpu.uuid or "").startswith(entry)]
        if len(found) != 1:
            return None
    else:
        number = re.match(r"\+?([0-9]+)", entry)
        if number is None or int(number[1]) >= len(listed):
            return None
        found = [listed[int(number[1])]]
    gpu = found[0]
    if gpu.mig:
        return (gpu, gpu.instances[0]) if gpu.instances else None
    return gpu, None


def _one_instance(gpu: Gpu, instance: Instance, count: int) -> Seen:
    notes = (f"CUDA enumerates one MIG instance, {instance.uuid}, of {count}",) if count > 1 else ()
    return Seen((gpu,), instance, notes)


def _in_mig(gpu: Gpu) -> str:
    return f"GPU {gpu.index} is in MIG mode ({len(gpu.instances)} instances): left out; {MASK}=MIG-… takes one of them"
