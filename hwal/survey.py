"""survey: the machine to work on, this one or one on paper, and what each backend says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwal.backend import Backend
from hwal.detect import ask, detect, facts, read_machine
from hwal.env import TOPOLOGY
from hwal.errors import DeviceError, HwalError
from hwal.host import Host, RecordedHost, Recording
from hwal.registry import Registry
from hwal.topology import Device
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


def refuse_elsewhere(source: str | None, choice: Choice, backend: Backend) -> None:
    """A run needs its devices here. Raises DeviceError where `source`, HWAL_TOPOLOGY's, told of others: of other indices, or of
    the same with another id (another name, where there is no id)."""
    if source is None or backend.caps.imaginary:
        return
    asked = choice.target if choice.target.backend == backend.name else None
    probe = ask(backend, Host(), asked)
    here = {device.index: device for device in probe.devices}
    strangers = [device for device in choice.devices if not _same(device, here.get(device.index))]
    if strangers:
        raise DeviceError(
            f"the devices of another machine cannot train: {len(strangers)} of {len(choice.devices)} {backend.name} device(s) "
            "are not here",
            where=f"{TOPOLOGY}={source}",
            why=f"on this machine {backend.name} is {probe.state}: {probe.reason}",
            hint=f"unset {TOPOLOGY}, or hwal train --dry-run … to plan for that machine",
        )


def _same(told: Device, found: Device | None) -> bool:
    if found is None:
        return False
    if told.id is not None and found.id is not None:
        return told.id == found.id
    return told.name is None or found.name is None or told.name == found.name


def _loaded(registry: Registry) -> dict[str, Backend]:
    """The backends that can be imported; why one cannot stands in its probe."""
    backends = {}
    for name in registry.names:
        try:
            backends[name] = registry.load(name)
        except HwalError:
            continue
    return backends
