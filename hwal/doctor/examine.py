"""examine: findings of all kinds, the gravest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hwal.backend import Backend
from hwal.doctor.limits import limits
from hwal.doctor.mpi import mpi
from hwal.doctor.paths import paths
from hwal.doctor.versions import libraries, versions
from hwal.finding import LEVELS, Finding
from hwal.host import Host
from hwal.values import Probe


def examine(host: Host, probes: Sequence[Probe], backends: Mapping[str, Backend]) -> tuple[Finding, ...]:
    """What the backends find about their devices, and what there is about software and limits. Asks `host` only."""
    found = list(_blocked(probes))
    ready = [probe for probe in probes if probe.state == "ready"]
    for probe in ready:
        if (backend := backends.get(probe.backend)) is not None:
            found += backend.diagnose(host, probe)
    processes = max((len(probe.devices) for probe in ready), default=1)
    found += paths(host, ready)
    found += versions(host)
    found += libraries(host)
    found += mpi(host)
    found += limits(host, processes)
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


def _blocked(probes: Sequence[Probe]) -> list[Finding]:
    """Hardware that is there and cannot be used."""
    return [
        Finding(
            "error",
            probe.backend,
            "hardware is here, and cannot be used",
            probe.reason,
            f"hwal train takes something else, and --device {probe.backend} fails",
            probe.hint or "hwal devices",
        )
        for probe in probes
        if probe.state == "blocked"
    ]
