"""choose: target + probes -> Choice, with the reason. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hwal.backend import Backend
from hwal.errors import DeviceError
from hwal.topology import Device
from hwal.values import AUTO, Choice, PassedOver, Probe, Target


def choose(target: Target, probes: Sequence[Probe], backends: Mapping[str, Backend]) -> Choice:
    """The backend and devices that `target` stands for.

    `auto` takes the ready backend of the highest priority and says what it passed over; a named one that is absent or
    blocked is an error that says what is there. `backends` holds those that could be loaded.

    Raises DeviceError.
    """
    if target.backend == AUTO:
        return _auto(target, probes, backends)
    probe = _named(target, probes)
    backend = backends.get(target.backend)
    if backend is None:
        raise DeviceError(f"backend {target.backend!r} is not installed here", where=f"--device {target}", why=probe.reason)
    devices = backend.select(target, probe)
    if not devices:
        raise DeviceError(f"--device {target} leaves no device", where=f"--device {target}", hint=f"--device {backend.name}")
    return Choice(target, backend.name, devices, f"{describe(devices)}, asked for by --device {target}")


def describe(devices: Sequence[Device]) -> str:
    """`8 × NVIDIA H100, 2 × NVIDIA A100`."""
    counts = Counter(device.name or f"{device.backend} device" for device in devices)
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def _auto(target: Target, probes: Sequence[Probe], backends: Mapping[str, Backend]) -> Choice:
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
    devices = backends[winner.backend].unnamed(winner)
    return Choice(target, winner.backend, devices, f"{describe(devices)}, priority {priority}", passed)


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
