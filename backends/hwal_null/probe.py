"""Host -> Probe: where a backend looks for its hardware.

A probe asks the Host for files, folders, programs and variables, and gives one of three answers: absent (nothing of this
kind is here; silent), ready (with devices, and one link for every pair of them), or blocked (hardware is here but cannot
be used; with the reason and what to type). It reports what it does not know as None, and takes milliseconds.
"""

from __future__ import annotations

from itertools import combinations

from hwal.env import NULL_DEVICES
from hwal.host import Host
from hwal.topology import Device, Link
from hwal.values import Probe, Target

MOST = 256


def probe(host: Host, asked: Target | None) -> Probe:
    """As many devices as `--device null:N` or HWAL_NULL_DEVICES=N says; one for a mere `--device null`; else none."""
    variable = host.env(NULL_DEVICES) or None
    if variable is not None and count(variable) is None:
        return Probe(
            "null",
            "blocked",
            f"{NULL_DEVICES}={variable!r} is not a number of devices (1 to {MOST})",
            f"{NULL_DEVICES}=8, or unset it and say --device null:8",
        )
    number = count(variable) if variable else None
    if asked is not None:
        # What is no number is for select() to refuse: there it is an error of the user's, here it would look like a defect.
        number = count(asked.spec or "") or number or 1
    if number is None:
        return Probe("null", "absent", f"imaginary devices are made by --device null:N or {NULL_DEVICES}=N only")
    devices = tuple(
        Device("null", i, "imaginary device", f"null{i}", native={"fp32": "CPU"}, sources={"native": "table"})
        for i in range(number)
    )
    links = tuple(Link(a, b, "NULL", source="table", backend="null") for a, b in combinations(range(number), 2))
    devices_text = "1 imaginary device" if number == 1 else f"{number} imaginary devices"
    return Probe("null", "ready", devices_text, devices=devices, links=links)


def count(text: str) -> int | None:
    """A number of devices, or None where `text` is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MOST else None
