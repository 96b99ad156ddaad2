"""What a process needs before HIP starts: which devices it sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hwal.topology import Device
from hwal.values import Plan
from hwal_rocm.visible import HIP, ROCR


def mask(plan: Plan, env: Callable[[str], str | None]) -> dict[str, str]:
    """HIP_VISIBLE_DEVICES in the numbers that an inherited ROCR_VISIBLE_DEVICES leaves; that one stays as it is."""
    rocr = env(ROCR)
    below = [entry.strip() for entry in rocr.split(",")] if rocr else []
    return visible_variables(plan.devices, below)


def visible_variables(devices: Sequence[Device], below: Sequence[str] = ()) -> dict[str, str]:
    """The one mask that is set. `below`: entries of an inherited ROCR_VISIBLE_DEVICES, among which HIP counts."""
    numbers = [device.index if device.outer is None else device.outer for device in devices]
    if not below:
        return {HIP: ",".join(map(str, numbers))}
    places = []
    for device, number in zip(devices, numbers, strict=True):
        own = [place for place, entry in enumerate(below) if entry in (str(number), device.id)]
        places.append(own[0] if own else number)
    return {HIP: ",".join(map(str, places))}
