"""choose: target + probes -> Choice, with the reason. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwal.backend import Backend
from hwal.errors import DeviceError
from hwal.topology import Device
from hwal.values import AUTO, Choice, PassedOver, Picked, Probe, Target


def choose(
    target: Target,
    probes: Sequence[Probe],
    backends: Mapping[str, Backend],
    count: int | None = None,
    for_all: bool = True,
    framework: str | None = None,
) -> Choice:
    """The backend and devices that `target` stands for.

    `auto` takes the ready backend of the highest priority and says what it passed over; a named one that is absent or
    blocked is an error that says what is there. `backends` holds those that could be loaded.

    Args:
        count: how many processes want a device, where that is known.
        for_all: whether this process chooses for all ranks. Where each rank chooses for itself, who uses a device now does not
            count: it may be the rank beside it.
        framework: what is to train; None leaves aside which build of it is installed.

    Raises DeviceError.
    """
    probes = [probe.for_framework(framework) for probe in probes]
    if not for_all:
        probes = [without_use(probe) for probe in probes]
    if target.backend == AUTO:
        return _auto(target, probes, backends, count)
    probe = _named(target, probes)
    backend = backends.get(target.backend)
    if backend is None:
        raise DeviceError(f"backend {target.backend!r} is not installed here", where=f"--device {target}", why=probe.reason)
    picked = backend.unnamed(probe, count) if target.spec is None else Picked(backend.select(target, probe))
    if not picked.devices:
        hint = "hwal devices" if target.spec is None else f"--device {backend.name}"
        raise DeviceError(f"--device {target} leaves no device", where=f"--device {target}", why=picked.why, hint=hint)
    return Choice(target, backend.name, picked.devices, _why(picked, f"asked for by --device {target}"))


def without_use(probe: Probe) -> Probe:
    """The probe as if nobody used the devices."""
    return replace(probe, devices=tuple(replace(device, users=None, used_bytes=None) for device in probe.devices))


def _why(picked: Picked, how: str) -> str:
    return f"{describe(picked.devices) or 'no device is left'}, {how}" + (f"; {picked.why}" if picked.why else "")


def describe(devices: Sequence[Device]) -> str:
    """`8 × NVIDIA H100, 2 × NVIDIA A100`."""
    counts = Counter(device.name or f"{device.backend} device" for device in devices)
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def _auto(target: Target, probes: Sequence[Probe], backends: Mapping[str, Backend], count: int | None) -> Choice:
    best: tuple[int, Probe] | None = None
    for probe in probes:
        priority = backends[probe.backend].priority if probe.backend in backends else None
        if probe.state == "ready" and probe.devices and priority is not None and (best is None or priority > best[0]):
            best = priority, probe
    if best is None:
        blocked = [probe for probe in probes if probe.state == "blocked"]
        raise DeviceError(
            "no device can be used",
            where="--device auto",
            why="; ".join(f"{probe.backend}: {probe.reason}" for probe in blocked) or "no backend found its hardware",
            hint=next((probe.hint for probe in blocked if probe.hint), "hwal devices"),
        )
    priority, winner = best
    passed = tuple(
        PassedOver(probe.backend, _why_passed(probe, backends))
        for probe in probes
        if probe is not winner and probe.state != "absent"
    )
    picked = backends[winner.backend].unnamed(winner, count)
    return Choice(target, winner.backend, picked.devices, _why(picked, f"priority {priority}"), passed)


def _why_passed(probe: Probe, backends: Mapping[str, Backend]) -> str:
    if probe.state == "blocked":
        return f"blocked: {probe.reason}" + (f"; {probe.hint}" if probe.hint else "")
    if probe.backend not in backends:  # in a file of another machine
        return "not installed here"
    if not probe.devices:
        return "it has no device"
    priority = backends[probe.backend].priority
    return "only when named" if priority is None else f"priority {priority}"


def _named(target: Target, probes: Sequence[Probe]) -> Probe:
    """The ready probe of the backend that `target` names."""
    own = [probe for probe in probes if probe.backend == target.backend]
    ready = next((probe for probe in own if probe.state == "ready"), None)
    if ready is not None:
        return ready
    there = [probe for probe in probes if probe.state == "ready"]
    names = ", ".join(f"{probe.backend} ({describe(probe.devices)})" for probe in there) or "nothing"
    blocked = next((probe for probe in own if probe.state == "blocked"), None)
    if blocked is not None:
        raise DeviceError(f"{target.backend} is blocked: {blocked.reason}", where=f"--device {target}", hint=blocked.hint)
    raise DeviceError(
        f"no {target.backend} device on this machine; ready here: {names}",
        where=f"--device {target}",
        why=own[0].reason if own else None,
        hint=f"--device {there[0].backend}, or --device auto" if there else "hwal devices",
    )
