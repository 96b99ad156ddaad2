"""What a machine is made of: devices, and how each pair of them is linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field

from hwal.record import Record, dataclass

GIB = 1 << 30
TAKEN = 0.25  # of a device's memory: more than a desktop takes, or a driver for itself


@dataclass(frozen=True)
class Device(Record):
    """One device of one backend. What is unknown is None; `sources` says where each known figure came from.

    Attributes:
        index: position in the backend's own enumeration, after visibility masks.
        id: what names the device across reboots and containers (a UUID, a PCI address, "node0").
        memory_bytes: what this process may use of the device's memory, limits applied.
        numa: the NUMA node it hangs on.
        arch: the vendor's name of its architecture ("sm_90", "sapphire-rapids").
        cores: ids of the CPU cores next to it that this process may use, one per physical core.
        threads: how many CPU threads may run at full speed beside it (cores, cut by a CPU quota).
        native: precision -> the unit that computes it natively ("bf16" -> "AMX-BF16"); others are emulated or missing.
            An fp16 listed before fp32 may be what auto trains in, where there is no bf16; one listed after it may not.
        sources: field -> "driver", "sysfs", "procfs", "text", "table" or "guess".
        part_of: the id of the whole GPU that this is a partition of (a MIG instance, an XCD of CPX mode).
        parts: ids of the partitions it is cut into: it is none to train on as a whole then.
        pci: its address on the PCI bus ("0000:4a:00.0").
        ports: speed of each direct link (NVLink, xGMI) that is up, bytes per second in one direction.
        nics: the NICs nearest to it -> class of the path there ("mlx5_0" -> "PIX"); empty where none is known.
        outer: its number in the driver's own enumeration, where masks or another order make that differ from `index`.
        flops: dense multiply-adds of 16-bit numbers at its peak, in operations per second: what kinds are compared by.
        used_bytes: what is taken of its memory now. users: other processes that compute on it now, as far as they are seen.
    """

    backend: str
    index: int
    name: str | None = None
    id: str | None = None
    memory_bytes: int | None = None
    numa: int | None = None
    arch: str | None = None
    cores: tuple[int, ...] | None = None
    threads: int | None = None
    native: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    part_of: str | None = None
    parts: tuple[str, ...] = ()
    pci: str | None = None
    ports: tuple[float, ...] = ()
    outer: int | None = None
    nics: Mapping[str, str] = field(default_factory=dict)
    flops: float | None = None
    used_bytes: int | None = None
    users: int | None = None

    @property
    def in_use(self) -> bool:
        """Whether others train on it: a process that computes there, or, as in a container one sees no others', its memory."""
        taken = self.used_bytes is not None and self.memory_bytes is not None and self.used_bytes > TAKEN * self.memory_bytes
        return bool(self.users) or taken

    @property
    def use(self) -> str:
        """`3 (2 processes, 31.0 of 80.0 GiB, from driver)`: its index, and what is known of its use by others."""
        facts = [f"{self.users} process{'es' * (self.users > 1)}"] if self.users else []
        if self.used_bytes is not None and self.memory_bytes is not None:
            facts.append(f"{self.used_bytes / GIB:.1f} of {self.memory_bytes / GIB:.1f} GiB")
        source = self.sources.get("users") or self.sources.get("used_bytes")
        facts += [f"from {source}"] if source else []
        return f"{self.index} ({', '.join(facts)})" if facts else str(self.index)


@dataclass(frozen=True)
class Link(Record):
    """The path between devices `a` and `b` (indices of one backend, a < b).

    Attributes:
        class_: the field's own term for the path ("NV4", "XGMI", "PIX", "SYS"), "" when unknown.
        bandwidth: bytes per second in one direction, or None.
        p2p: whether the two can read each other's memory without the host; None when not asked or not known.
        source: as Device.sources.
        count: direct links in the bundle (NVLinks, xGMI links), None where it is not known.
        distance: the driver's own measure, less is nearer; it compares pairs of the same class on the same machine.
        path: class of the PCIe path beside a direct link.
    """

    a: int
    b: int
    class_: str = field(metadata={"json": "class"})
    bandwidth: float | None = None
    p2p: bool | None = None
    source: str = "guess"
    backend: str = ""
    count: int | None = None
    distance: int | None = None
    path: str | None = None


@dataclass(frozen=True)
class Topology(Record):
    """Devices and links of one machine; links hold one entry for every pair of devices of the same backend."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()

    def of(self, backend: str) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.backend == backend)


def straggler(devices: Sequence[Device]) -> str | None:
    """What devices of different kinds cost in one run, whose every step waits for the slowest; None where all are of one kind.

    `2 × A100, 1 × T4: at the pace of T4 they do 195 of 689 TFLOPS; 2 × A100 alone do 624`.
    """
    kinds = Counter(str(device.name) for device in devices)
    if len(kinds) < 2:
        return None
    text = ", ".join(f"{count} × {name}" for name, count in kinds.items())
    speeds = {str(device.name): device.flops for device in devices if device.flops is not None}
    if len(speeds) < len(kinds):
        return f"{text}; how fast each is, is not known"
    slowest = min(kinds, key=lambda name: speeds[name])
    best = max(kinds, key=lambda name: speeds[name] * kinds[name])
    whole = sum(speeds[name] * count for name, count in kinds.items())
    together, alone = speeds[slowest] * len(devices), speeds[best] * kinds[best]
    told = f"{text}: at the pace of {slowest} they do {together / 1e12:.0f} of {whole / 1e12:.0f} TFLOPS"
    return f"{told}; {kinds[best]} × {best} alone do {alone / 1e12:.0f}" if alone > together else told
