"""Host -> Probe. The toy's driver is a text file: its path is in TOY_DRIVER, and each of its lines names a device."""

from __future__ import annotations

from itertools import combinations

from hwal.host import Host
from hwal.topology import Device, Link
from hwal.values import Probe


def probe(host: Host) -> Probe:
    path = host.env("TOY_DRIVER")
    if not path:
        return Probe("toy", "absent", "TOY_DRIVER is not set")
    text = host.read(path)
    if text is None:
        return Probe("toy", "blocked", f"TOY_DRIVER={path!r} cannot be read", "TOY_DRIVER=FILE, a file with a device a line")
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        return Probe("toy", "blocked", f"{path} names no device", f"write a name into {path}, one for each device")
    devices = tuple(
        Device("toy", index, name, f"toy{index}", native={"fp32": "the CPU"}, sources={"name": "driver", "native": "table"})
        for index, name in enumerate(names)
    )
    links = tuple(Link(a, b, "TOY", source="table", backend="toy") for a, b in combinations(range(len(names)), 2))
    return Probe("toy", "ready", f"{len(names)} in {path}", devices=devices, links=links)
