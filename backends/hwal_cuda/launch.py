"""What a process needs before CUDA starts: which devices it sees, and what torch and NCCL are to know."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.host import Host
from hwal.topology import Device
from hwal.values import Decision
from hwal_cuda.present import WSL
from hwal_cuda.virtual import is_virtual
from hwal_cuda.visible import MASK, ORDER
from hwal_gpu import allocator

SEGMENTS = (2, 5)  # the torch from which segments that grow are passed between processes too


def visible_variables(devices: Sequence[Device]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for these devices in this order: full UUIDs; where one is not known, PCI numbers and their order."""
    ids = [device.id for device in devices]
    if all(name is not None and name.startswith(("GPU-", "MIG-")) for name in ids):
        return {MASK: ",".join(filter(None, ids))}
    numbers = [device.index if device.outer is None else device.outer for device in devices]
    return {ORDER: "PCI_BUS_ID", MASK: ",".join(map(str, numbers))}


def allocator_variables(devices: Sequence[Device], host: Host) -> dict[str, Decision]:
    """Segments that grow, but under WSL and on shares of a GPU, where mapping memory page by page is another matter."""
    whole = all(device.part_of is None and not is_virtual(device.name) for device in devices)
    safe = host.system == "linux" and host.may_open(WSL) is None and whole
    return allocator.expandable_segments(host, SEGMENTS) if safe else {}
