"""What the readers share: the probe they end with, and the error for a line that is damaged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from hwal.errors import RecordError
from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_cuda import virtual
from hwal_gpu.speeds import peak

IN_MIG = "MIG"  # stands for the instances of a GPU of which only the mode is told
UNKNOWN = re.compile(r"^\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset|.*deprecated)?\]?$")


def damaged(what: str, where: str, number: int, tool: str) -> RecordError:
    """The error for line `number` (1 the first)."""
    return RecordError(
        what, where=f"{where}, line {number}", hint=f"capture it again with {tool}: the file is cut off or was edited"
    )


def known(text: str | None) -> str | None:
    """A value, or None for what the tool prints in place of one."""
    return None if text is None or UNKNOWN.match(text.strip()) else text.strip()


def uuid(text: str | None) -> str | None:
    """A GPU's UUID; None where it was masked by whoever published it, or is none."""
    return text.strip() if text and re.fullmatch(r"\s*GPU-[0-9A-Fa-f-]+\s*", text) else None


def mebibytes(text: str | None) -> int | None:
    """Bytes of `81559 MiB` or `81559`; None where the tool knows of none. Raises ValueError for anything else."""
    value = known(text)
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)( MiB)?", value)
    if found is None:
        raise ValueError(f"{value[:60]!r} is no size of a memory")
    return int(found[1]) << 20 or None


def address(text: str | None) -> str | None:
    """`00000000:4A:00.0` as the kernel writes it: `0000:4a:00.0`."""
    found = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])", (text or "").strip())
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}".lower() if found else None


def numbered(numbers: Sequence[int], what: str) -> str | None:
    """In what the numbers of a GPU's parts are not 0, 1, 2 …, in order; None where they are."""
    for place, number in enumerate(numbers):
        if number != place:
            return f"{what} {number} where {what} {place} should stand"
    return None


def check_numbers(devices: Sequence[Device], lines: Sequence[int], where: str, tool: str, lost: bool = False) -> None:
    """Refuses a list where a GPU stands twice or out of order, or where one between the others is missing.

    `lines`: of each device. A single GPU may have any number: nvidia-smi -i tells of that one.
    `lost`: whether the tool says that it cannot reach some.
    """
    for name, told in (("number", [d.outer for d in devices]), ("PCI address", [d.pci for d in devices])):
        for place, value in enumerate(told):
            if value is not None and value in told[:place]:
                raise damaged(f"a GPU of {name} {value} for the second time", where, lines[place], tool)
    numbers = [device.outer for device in devices]
    for place, number in enumerate(numbers):
        before = numbers[place - 1] if place else None
        if number is not None and before is not None and number < before:
            raise damaged(f"GPU {number} below GPU {before}", where, lines[place], tool)
        if number is not None and len(numbers) > 1 and not lost and number > 0 and number - 1 not in numbers:
            raise damaged(f"GPU {number}, but no GPU {number - 1}", where, lines[place], tool)


def probe(devices: Sequence[Device], tool: str, notes: Sequence[str] = (), links: Sequence[Link] | None = None) -> Probe:
    """The probe of what a tool told. Ids that several devices share were masked by whoever published them, and are left out."""
    counts = Counter(device.id for device in devices if device.id)
    if any(count > 1 for count in counts.values()):
        devices = [replace(device, id=None) for device in devices]
        notes = (*notes, "several GPUs have the same UUID in this file: left out")
    devices = [_rated(device) for device in devices]
    notes = (*notes, *virtual.notes(virtual.shares(devices, {})))
    if links is None:
        pairs = combinations(range(len(devices)), 2)
        links = [Link(a, b, "", source="text", backend="cuda") for a, b in pairs]
    names = Counter(device.name or "NVIDIA GPU" for device in devices)
    what = ", ".join(f"{count} × {name}" for name, count in names.items())
    return Probe("cuda", "ready", f"{what}, as {tool} prints", devices=tuple(devices), links=tuple(links), notes=tuple(notes))


def _rated(device: Device) -> Device:
    """With its peak, where a table has it: kinds are compared by it."""
    flops = peak(device.name)
    return replace(device, flops=flops, sources={**device.sources, "flops": "table"}) if flops else device
