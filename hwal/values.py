"""The vocabulary: the frozen values that pass from step to step of one run. All print as JSON and read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import prod
from typing import Any, Literal

from hwal.env import Settings
from hwal.errors import PlanError, RecordError, TargetError, WorldError, nearest
from hwal.record import Record, dataclass
from hwal.topology import Device, Link, Topology

AUTO = "auto"
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # addresses of a world whose ranks are all on one machine
SLICE = "slice"  # World.launcher of machines that start the same command with no launcher between them (Backend.world)
AXES = ("dp", "fsdp", "tp", "pp", "cp")
LATER = {"mps": "Apple GPUs"}  # backends still to come
ALSO_KNOWN_AS = {
    "gpu": "cuda (NVIDIA) or rocm (AMD)",
    "nvidia": "cuda",
    "amd": "rocm",
    "hip": "rocm",
    "metal": "mps",
    "apple": "mps",
    "xla": "tpu",
    "host": "cpu",
}


@dataclass(frozen=True)
class Target(Record):
    """What --device names: a backend, and after the colon what that backend understands (`cuda:0,2`, `tpu:v5e-8`, `null:8`)."""

    backend: str = AUTO
    spec: str | None = None

    def __str__(self) -> str:
        return self.backend if self.spec is None else f"{self.backend}:{self.spec}"

    @classmethod
    def parse(cls, text: str, known: Iterable[str]) -> Target:
        """Reads `NAME` or `NAME:SPEC`. Raises TargetError naming the nearest of the `known` backends."""
        where = f"--device {text}"
        name, colon, spec = text.strip().partition(":")
        name, spec = name.strip().lower(), spec.strip()
        known = [AUTO, *known]
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise TargetError(
                f"{text!r} names no device", where=where, hint=f"NAME or NAME:WHICH, NAME one of {', '.join(known)}"
            )
        if name in LATER and name not in known:
            raise TargetError(
                f"{name} ({LATER[name]}) comes with a later version of hwal; this one has {', '.join(known)}",
                where=where,
                hint="--device auto",
            )
        if name not in known:
            meant = ALSO_KNOWN_AS.get(name) or nearest(name, known)
            raise TargetError(
                f"unknown device {name!r}; there are {', '.join(known)}",
                where=where,
                hint=f"did you mean {meant}?" if meant else None,
            )
        if name == AUTO and colon:
            raise TargetError("auto takes nothing after it", where=where, hint="--device auto, or name the backend: cpu:0")
        if colon and not spec:
            raise TargetError(f"nothing stands after the colon of {text!r}", where=where, hint=f"--device {name}")
        return cls(name, spec or None)


@dataclass(frozen=True)
class Unfit(Record):
    """A framework whose installed build cannot use the devices, although another framework may."""

    framework: str
    reason: str
    hint: str


@dataclass(frozen=True)
class Probe(Record):
    """A backend's answer to "are you here?".

    Attributes:
        state: absent (silent), ready, or blocked (hardware is there but cannot be used; always shown).
        reason: one sentence. hint: what to type or install, when blocked.
        ms: time the probe took, in milliseconds.
        notes: things the user should know although the device is ready.
        unfit: frameworks that cannot use the devices: blocked for these (Probe.for_framework).
    """

    backend: str
    state: Literal["absent", "ready", "blocked"]
    reason: str
    hint: str | None = None
    ms: float | None = None
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()
    unfit: tuple[Unfit, ...] = ()

    def for_framework(self, framework: str | None) -> Probe:
        """What the answer is where this framework is to train; None where it is not known yet."""
        bar = next((each for each in self.unfit if each.framework == framework), None)
        return self if bar is None or self.state != "ready" else Probe(self.backend, "blocked", bar.reason, bar.hint, self.ms)


@dataclass(frozen=True)
class PassedOver(Record):
    """A backend that auto did not take, and why."""

    backend: str
    why: str


@dataclass(frozen=True)
class Picked(Record):
    """The devices of a target that names none, in the order of the ranks, and why these, where there were others."""

    devices: tuple[Device, ...]
    why: str | None = None


@dataclass(frozen=True)
class Choice(Record):
    """The backend and devices a target was resolved to, with the reason."""

    target: Target
    backend: str
    devices: tuple[Device, ...]
    why: str
    passed_over: tuple[PassedOver, ...] = ()

    def __str__(self) -> str:
        text = f"{self.backend}: {self.why}"
        if self.passed_over:
            text += "; passed over: " + ", ".join(f"{p.backend} ({p.why})" for p in self.passed_over)
        return text


@dataclass(frozen=True)
class HostFacts(Record):
    """Which machine a document was made on."""

    name: str | None
    system: str
    machine: str


FASTEST = 1e15  # bytes per second: no link is; sums of such still are whole numbers that orders are reckoned with


@dataclass(frozen=True)
class Machine(Record):
    """What `hwal devices --json` prints and HWAL_TOPOLOGY or --from reads: all probes' answers, and the choice made of them.

    In JSON the probes' devices and links stand beside the probes, in two flat lists.
    """

    host: HostFacts
    probes: tuple[Probe, ...]
    choice: Choice | None = None

    @property
    def topology(self) -> Topology:
        return Topology(
            tuple(device for probe in self.probes for device in probe.devices),
            tuple(link for probe in self.probes for link in probe.links),
        )

    def to_dict(self) -> dict[str, Any]:
        document = super().to_dict()
        for part in ("devices", "links"):
            document[part] = [item for probe in document["probes"] for item in probe.pop(part)]
        return document

    @classmethod
    def from_dict(cls, data: Any, where: str = "$") -> Machine:
        if not (isinstance(data, Mapping) and isinstance(data.get("probes"), list)):
            place = f"{where}.probes" if isinstance(data, Mapping) and "probes" in data else where
            raise RecordError("not a document that `hwal devices --json` printed: it has no list of probes", where=place)
        document = dict(data)
        document["probes"] = [dict(probe) if isinstance(probe, Mapping) else probe for probe in document["probes"]]
        orphans = []
        for part, kind in (("devices", Device), ("links", Link)):
            items = document.pop(part, [])
            if not isinstance(items, list):
                raise RecordError(f"{part!r} is not a list", where=f"{where}.{part}")
            for i, item in enumerate(items):
                place = f"{where}.{part}[{i}]"
                value = kind.from_dict(item, place)
                if isinstance(value, Link) and not 0 <= (value.bandwidth or 0) <= FASTEST:
                    what = f"expected bytes per second, 0 to {FASTEST:g}, got {value.bandwidth:g}"
                    raise RecordError(what, where=f"{place}.bandwidth")
                backend = value.backend
                owner = _owner(backend, document["probes"])
                if owner is None:
                    orphans.append(RecordError(f"no probe is of backend {backend!r}", where=place))
                else:
                    owner.setdefault(part, []).append(item)
        machine = super().from_dict(document, where)  # a probe that is wrong in itself is the better complaint
        if orphans:
            raise orphans[0]
        return machine


def _owner(backend: str, probes: list[Any]) -> dict[str, Any] | None:
    """The probe that a device or link belongs to: the backend's ready one (a clash of names adds a blocked one beside it)."""
    own = [probe for probe in probes if isinstance(probe, dict) and probe.get("backend") == backend]
    return min(own, key=lambda probe: probe.get("state") != "ready", default=None)


@dataclass(frozen=True)
class Decision(Record):
    """Something hwal decided, and the reason it prints with it."""

    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.value} ({self.why})"


@dataclass(frozen=True)
class Process(Record):
    """One process of the plan on this node: its local rank, the indices of its devices, its CPU cores and thread count.

    `cores` is None where the process is left on the affinity it inherits.
    """

    local_rank: int
    devices: tuple[int, ...]
    cores: tuple[int, ...] | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Wrap(Record):
    """Which parts of a model are units of sharding, where a file says so. Both left out: the whole model is one unit.

    Attributes:
        classes: names of module classes. min_params: a part becomes a unit at that many parameters of its own.
    """

    classes: tuple[str, ...] = ()
    min_params: int | None = None


@dataclass(frozen=True)
class Plan(Record):
    """How a run is laid out. The mesh's axes multiply to the number of devices of all nodes; a wrong product is refused.

    `strategy` and `micro_batch` may stay "auto" until the model is known (Runtime.prepare); without `wrap` so do the units.
    """

    backend: str
    framework: Decision
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    mesh: Mapping[str, int]
    precision: Decision
    strategy: Decision
    micro_batch: int | str | None = None
    nodes: int = 1
    wrap: Wrap | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for axis, degree in self.mesh.items():
            if axis not in AXES:
                near = nearest(axis, AXES)
                raise PlanError(
                    f"unknown mesh axis {axis!r}; there are {', '.join(AXES)}",
                    hint=f"did you mean {near!r}?" if near else None,
                )
            if degree < 1:
                raise PlanError(f"mesh axis {axis} = {degree}; a degree is 1 or more")
        have = self.nodes * sum(len(process.devices) for process in self.processes)
        if prod(self.mesh.values()) != have:
            equation = " × ".join(f"{axis} {degree}" for axis, degree in self.mesh.items()) or "1"
            raise PlanError(
                f"the mesh does not fill the world: {equation} = {prod(self.mesh.values())}, devices in use = {have}",
                why=f"{self.nodes} node(s), {len(self.processes)} process(es) a node",
            )

    @property
    def local_size(self) -> int:
        return len(self.processes)

    @property
    def world_size(self) -> int:
        return self.nodes * len(self.processes)


@dataclass(frozen=True)
class Request(Record):
    """What the command line asked of `hwal train`.

    `script` None means the built-in recipe; `arguments` are the script's own, or the recipe's flags.
    """

    target: Target = field(default_factory=Target)
    script: str | None = None
    arguments: tuple[str, ...] = ()
    processes: int | None = None
    engine: str = AUTO
    engine_arguments: tuple[str, ...] = ()
    framework: str | None = None
    plan: str | None = None
    wrap: Wrap | None = None
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class Command(Record):
    """One program to start: argv, and the environment variables it gets on top of those it inherits."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch(Record):
    """What an engine will do.

    `state_dir` is where ranks leave word for the launcher (None: nobody waits for them). `notes`: what the user should know.
    """

    engine: str
    commands: tuple[Command, ...]
    why: str
    state_dir: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class World(Record):
    """The processes that train together, as one of them sees it, and who started them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    address: str | None = None
    port: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.size == self.local_size

    @property
    def nodes(self) -> int:
        """Machines, each with as many ranks as this one. Raises WorldError where they cannot be equal."""
        count, rest = divmod(self.size, self.local_size)
        if rest:
            raise WorldError(
                f"{self.size} ranks, {self.local_size} of them here: not equally many on every machine",
                where=f"world from {self.launcher}",
                why=f"{self.size} = {count} × {self.local_size} + {rest}",
                hint="start as many processes on every machine",
            )
        return count


@dataclass(frozen=True)
class Caps(Record):
    """What a backend can do. Code and tests ask these, never a backend's name.

    Attributes:
        frameworks: those with a runtime.
        collectives: the torch.distributed backend its ranks talk through; None when only one process makes sense.
        shares_devices: several processes may share one device.
        sharding: parameters can be sharded over ranks (FSDP).
        spmd: one process drives all devices of a machine, and arrays are laid over them; a process a device only when asked.
        deterministic: sums can be had with the same bits at every world.
        pinned_memory: host buffers are worth pinning.
        emulated: precision -> what it costs where a device does not have it natively.
        imaginary: the devices do not exist; nothing trained on them says anything about speed.
        untried: what no real device has run yet, in words that every plan carries; None where nothing is left to be shown.
    """

    frameworks: tuple[str, ...] = ()
    collectives: str | None = None
    shares_devices: bool = False
    sharding: bool = False
    spmd: bool = False
    deterministic: bool = True
    pinned_memory: bool = False
    emulated: Mapping[str, str] = field(default_factory=dict)
    imaginary: bool = False
    untried: str | None = None
