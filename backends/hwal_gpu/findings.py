"""Findings that are worded alike for both vendors' GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwal.finding import Finding
from hwal.topology import Device, straggler

NEAR = 5  # °C below the threshold at which clocks are cut
COOLING = "clean filters, free the airflow, raise fan speed: boards throttle near 84 to 90 °C"
CABLES = "check that every power connector has a cable of its own"


def hot(subject: str, now: float | None, limit: float | None, look: str) -> Iterator[Finding]:
    """Temperatures in °C; `look` shows them."""
    if now is not None and limit is not None and now >= limit - NEAR:
        evidence = f"{now:g} °C; clocks are cut at {limit:g} °C"
        yield Finding(
            "warning", subject, "it is almost too hot", evidence, "its clocks will be cut under load", f"{look}; {COOLING}"
        )


def capped(subject: str, now: float | None, default: float | None, raise_it: str) -> Iterator[Finding]:
    """Power caps in watts."""
    if now is not None and default is not None and now < default:
        evidence = f"{now:g} W, by default {default:g} W"
        remedy = f"{raise_it}, unless somebody meant it"
        yield Finding("warning", subject, "its power cap is below the default", evidence, "steps are slower", remedy)


def lanes(subject: str, now: int | None, most: int | None) -> Iterator[Finding]:
    """Fewer PCIe lanes than the slot has are always worth a word."""
    if now is not None and most is not None and now < most:
        remedy = "reseat the board; look up which slots share lanes; riser cables"
        so = "copies from the host are slower"
        yield Finding("warning", subject, "PCIe has fewer lanes than it could", f"x{now} of x{most}", so, remedy)


def slower(subject: str, evidence: str) -> Iterator[Finding]:
    """PCIe below its generation while the board works: an idle one does so to save power."""
    remedy = "firmware settings of the slot; riser cables; dmesg | grep -i aer"
    yield Finding("warning", subject, "PCIe is slower than it could be", evidence, "copies from the host are slower", remedy)


def unasked(backend: str, evidence: str, so: str, remedy: str) -> Finding:
    """That nothing was found is no news where nobody looked."""
    return Finding("note", backend, "how the GPUs are was not asked", evidence, so, remedy)


def together(backend: str, devices: Sequence[Device], mask: str) -> Iterator[Finding]:
    """What is to be said of the visible devices as a whole: kinds that differ, and others at work there."""
    cost = straggler(devices)
    if cost is not None:
        remedy = f"{mask} of one kind: hwal devices select -k N --env"
        yield Finding("warning", backend, "GPUs of different kinds", cost, "a run over all waits for the slowest", remedy)
    used = [device for device in devices if device.in_use]
    if used:
        evidence = ", ".join(device.use for device in used)
        so = "memory and time are shared; a run that names no devices leaves them out while others are free"
        yield Finding("note", backend, "GPUs that others use", evidence, so, "hwal train --device with the free ones, or wait")
