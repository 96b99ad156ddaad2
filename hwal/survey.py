"""survey: the machine to work on, this one or one on paper, and what each backend says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwal.backend import Backend
from hwal.detect import detect, facts, read_machine
from hwal.errors import HwalError
from hwal.host import Host, RecordedHost, Recording
from hwal.registry import Registry
from hwal.values import AUTO, Choice, HostFacts, Probe, Target


@dataclass(frozen=True, eq=False, repr=False)  # each of these costs a start-up 0.1 ms
class Survey:
    """`choice` is the one that a document brought along, None when it is still to be made.

    `machine` is what backends can go on asking: this machine or a recorded host, None for what a document tells.
    """

    host: HostFacts
    backends: Mapping[str, Backend]
    target: Target
    probes: tuple[Probe, ...]
    choice: Choice | None = None
    machine: Host | None = None

    @property
    def host_of_devices(self) -> Host:
        """Whom to ask about the machine that has the devices; one that knows nothing where a document told of them."""
        return self.machine or RecordedHost(Recording())

    def probe_of(self, backend: str) -> Probe:
        """What that backend said; absent where it was not asked."""
        own = [probe for probe in self.probes if probe.backend == backend]
        return min(own, key=lambda probe: probe.state != "ready", default=Probe(backend, "absent", "it was not asked"))


def survey(source: str | None, device: str = AUTO) -> Survey:
    """Asks every backend about this machine, or about the one in `source`.

    `source` is a file that `hwal devices --json` wrote, or a recorded host's folder. Raises UsageError when it is
    neither, TargetError when `device` names no backend.
    """
    machine = None if source is None else read_machine(source)
    host = machine if isinstance(machine, RecordedHost) else Host()
    registry = Registry(host)
    target = Target.parse(device, registry.names)
    if machine is None or isinstance(machine, RecordedHost):
        probes = detect(host, registry, target)
        return Survey(facts(host), _loaded(registry), target, probes, machine=host)
    return Survey(machine.host, _loaded(registry), target, machine.probes, machine.choice)


def _loaded(registry: Registry) -> dict[str, Backend]:
    """The backends that can be imported; why one cannot stands in its probe."""
    backends = {}
    for name in registry.names:
        try:
            backends[name] = registry.load(name)
        except HwalError:
            continue
    return backends
