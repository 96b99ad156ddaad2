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

ON_GPUS = {"torch": ("torch",), "keras": ("tensorflow", "tensorflow-rocm")}
"""Framework -> the distributions by which it may compute on GPUs."""


def examine(host: Host, probes: Sequence[Probe], backends: Mapping[str, Backend]) -> tuple[Finding, ...]:
    """What the backends find about their devices, and what there is about software and limits. Asks `host` only."""
    found = list(_blocked(probes))
    ready = [probe for probe in probes if probe.state == "ready"]
    for probe in ready:
        if (backend := backends.get(probe.backend)) is not None:
            found += backend.diagnose(host, probe)
        found += _unfit(host, probe)
    processes = max((len(probe.devices) for probe in ready), default=1)
    found += paths(host, ready)
    found += versions(host)
    found += libraries(host)
    found += mpi(host)
    found += limits(host, processes)
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


def _unfit(host: Host, probe: Probe) -> list[Finding]:
    """Builds that cannot use the hardware: meant so, perhaps, where another framework is there that can."""
    unfit = {each.framework for each in probe.unfit}
    other = any(host.version(name) for framework, names in ON_GPUS.items() if framework not in unfit for name in names)
    so = f"hwal train passes {probe.backend} over, and --device {probe.backend} fails"
    return [
        Finding(
            "note" if other else "error",
            each.framework,
            f"{each.framework} cannot use the {probe.backend} devices",
            each.reason,
            f"{so}, for {each.framework}",
            each.hint,
        )
        for each in probe.unfit
    ]


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
