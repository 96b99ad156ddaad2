"""vGPUs: shares of a board that a hypervisor gives to virtual machines, and what follows from training on one.

Their names end in a profile: gigabytes and a series, `NVIDIA A40-24Q`, `GRID A100D-1-10C` (on a MIG instance). Series C is for
computing, Q for workstations; B and A are for desktops, and have no CUDA. (NVIDIA vGPU software documentation, "Virtual GPU
Types".) A board that is passed through whole is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hwal.topology import Device

PROFILE = re.compile(r"-(\d+)([ABCQ])$")
DESKTOPS = ("A", "B")


def series(name: str | None) -> str | None:
    """A, B, C or Q of a vGPU by its name; None for a whole board."""
    found = PROFILE.search(name or "")
    return found[2] if found else None


def is_virtual(name: str | None, told: bool | None = None) -> bool:
    """Whether a GPU is a vGPU: as NVML has `told`, else by its name."""
    return series(name) is not None if told is None else told


def shares(devices: Sequence[Device], told: Mapping[int | None, bool | None]) -> list[Device]:
    """The vGPUs among devices; `told` by the driver's number."""
    return [device for device in devices if is_virtual(device.name, told.get(device.outer))]


def notes(found: Sequence[Device]) -> list[str]:
    """What is said of vGPUs wherever devices are listed."""
    if not found:
        return []
    which = ", ".join(f"{device.index} ({device.name})" for device in found)
    return [f"shares of GPUs that a hypervisor gives (vGPU): {which}; others on the same board take from their speed, unseen"]
