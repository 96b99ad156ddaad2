"""What the readers share: devices, links and the probe they end with, and the error for a line that is damaged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from hwal.errors import RecordError
from hwal.topology import Device, Link
from hwal.values import Probe

KINDS = {"XGMI": "XGMI", "PCIE": "PCIE", "N/A": ""}
FACTS = {  # of the JSON's two layouts -> the name that the text's tables have
    "weight": "WEIGHT",
    "link_type": "LINK TYPE",
    "link_status": "ACCESS",
    "link_accessibility": "ACCESS",
    "bandwidth": "NUMA BW",
    "numa_bandwidth": "NUMA BW",
}


def probe(devices: Sequence[Device], links: Sequence[Link], tool: str, notes: Sequence[str] = ()) -> Probe:
    """The probe of what a tool told."""
    counts = Counter(device.name or "AMD GPU" for device in devices)
    what = ", ".join(f"{count} × {name}" for name, count in counts.items())
    return Probe("rocm", "ready", f"{what}, as {tool} prints", devices=tuple(devices), links=tuple(links), notes=tuple(notes))


def damaged(what: str, where: str, line: int, tool: str) -> RecordError:
    """The error for a line (1 the first)."""
    hint = f"capture it again with {tool}: the file is cut off or was edited"
    return RecordError(what, where=f"{where}, line {line}", hint=hint)


def device(place: int, label: str, numa: int | None) -> Device:
    """The GPU that a tool names `label`: GPU0, or its PCI address."""
    bus = label if ":" in label else None
    return Device("rocm", place, id=bus, pci=bus, numa=numa, outer=place, sources={} if numa is None else {"numa": "text"})


def link(a: int, b: int, kind: str, cells: Mapping[str, str]) -> Link:
    """From the cells of a pair in each table, and the kind of link (one of KINDS).

    NUMA BW is MB/s, least and most; ACCESS is whether peers may read each other.
    """
    weight, access = cells.get("WEIGHT", ""), cells.get("ACCESS")
    speed = re.fullmatch(r"\d+-(\d+)", cells.get("NUMA BW", ""))
    return Link(
        a,
        b,
        KINDS[kind],
        bandwidth=int(speed[1]) * 1e6 if speed and int(speed[1]) else None,
        p2p={"ENABLED": True, "True": True, "DISABLED": False, "False": False}.get(access or ""),
        source="text",
        backend="rocm",
        distance=int(weight) if weight.isdigit() and int(weight) else None,
    )
