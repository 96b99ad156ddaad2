"""What a process needs before CUDA starts: which devices it sees."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.topology import Device
from hwal_cuda.visible import MASK, ORDER


def visible_variables(devices: Sequence[Device]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for these devices in this order: full UUIDs; where one is not known, PCI numbers and their order."""
    ids = [device.id for device in devices]
    if all(name is not None and name.startswith(("GPU-", "MIG-")) for name in ids):
        return {MASK: ",".join(filter(None, ids))}
    numbers = [device.index if device.outer is None else device.outer for device in devices]
    return {ORDER: "PCI_BUS_ID", MASK: ",".join(map(str, numbers))}
