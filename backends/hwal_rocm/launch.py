"""What a process needs before HIP starts: which devices it sees, and what torch and RCCL are to know."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hwal.host import Host
from hwal.topology import Device
from hwal.values import Decision
from hwal_gpu import allocator
from hwal_rocm.visible import HIP, ORDINAL, ROCR

# Segments that grow came to ROCm in the spring of 2026, behind ROCm 7.2 at first (pytorch/pytorch pull requests 177974, 179781)
SEGMENTS, ROCM = (2, 13), (7, 2)


def visible_variables(devices: Sequence[Device], env: Callable[[str], str | None]) -> dict[str, str]:
    """HIP_VISIBLE_DEVICES, the one mask that is set, in the numbers that the inherited masks below it leave.

    Those stay as they are: HIP counts in what they have left.
    """
    numbers = [device.index if device.outer is None else device.outer for device in devices]
    for mask in (ROCR, ORDINAL):
        below = [entry.strip() for entry in (env(mask) or "").split(",") if entry.strip()]
        if below:
            ids = [device.id for device in devices]
            numbers = [_place(below, number, name) for number, name in zip(numbers, ids, strict=True)]
    return {HIP: ",".join(map(str, numbers))}


def _place(below: Sequence[str], number: int, name: str | None) -> int:
    """Where a device stands among the entries of a mask."""
    return next((place for place, entry in enumerate(below) if _names(entry, number, name)), number)


def _names(entry: str, number: int, name: str | None) -> bool:
    return int(entry) == number if entry.isascii() and entry.isdigit() else name is not None and entry.lower() == name.lower()


def allocator_variables(host: Host) -> dict[str, Decision]:
    """Segments that grow, where torch was built with a ROCm that has them."""
    built = re.search(r"\+rocm(\d+)\.(\d+)", host.version("torch") or "")
    has = built is not None and (int(built[1]), int(built[2])) >= ROCM
    return allocator.expandable_segments(host, SEGMENTS) if has else {}
