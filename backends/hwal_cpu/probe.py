"""Host -> Probe: cores, NUMA nodes, units, and what affinity and control groups leave this process of them.

Every answer may be missing or garbled (containers, hypervisors, other systems): it is then unknown, and the CPU is ready
all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from hwal.cgroup import Limits, limits, positive
from hwal.host import Host
from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_cpu.chip import Chip, native_units, read_chip

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
SYSCTL = ("machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize", "hw.optional.avx2_0", "hw.optional.arm.FEAT_BF16")
GIB = 1 << 30


def probe(host: Host) -> Probe:
    if host.system == "linux":
        return _linux(host)
    return _darwin(host) if host.system == "darwin" else _other(host)


class Part:
    """What becomes one device: the cores and the memory of a NUMA node, or of the machine where nodes are unknown."""

    def __init__(self, numa: int | None = None) -> None:
        self.numa = numa
        self.cores: tuple[int, ...] = ()
        self.threads: int | None = None
        self.memory_bytes: int | None = None
        self.sources: dict[str, str] = {}


def _linux(host: Host) -> Probe:
    cpuinfo = host.read("/proc/cpuinfo") or ""
    chip = read_chip(cpuinfo, host.machine)
    usable = host.affinity() or ()
    parts, notes = _parts(host, usable, cpuinfo)
    if usable and host.cpu_count and len(usable) < host.cpu_count:
        notes.insert(0, f"this process may use {len(usable)} of {host.cpu_count} CPUs")
    notes += _apply(limits(host), parts)
    return _ready(chip, parts, _links(host, parts), notes)


# nodes and cores


def _parts(host: Host, usable: Sequence[int], cpuinfo: str) -> tuple[list[Part], list[str]]:
    """One part for each NUMA node with usable CPUs; one for all where the nodes are unknown or do not add up."""
    nodes = {int(name[4:]): _cpu_list(host.read(f"{NODES}/{name}/cpulist")) for name in _node_names(host)}
    mine = {number: tuple(cpu for cpu in usable if cpu in (cpus or ())) for number, cpus in sorted(nodes.items())}
    mine = {number: cpus for number, cpus in mine.items() if cpus}
    if not mine or sum(map(len, mine.values())) != len(usable):
        part = Part()
        _add_cores(host, part, usable, cpuinfo)
        part.memory_bytes = _mem_total(host.read("/proc/meminfo"))
        part.sources["memory_bytes"] = "procfs"
        return [part], []
    parts = []
    for number, cpus in mine.items():
        part = Part(number)
        _add_cores(host, part, cpus, cpuinfo)
        # A virtual machine whose memory was plugged in later counts it in /proc/meminfo, not always in the node's.
        alone = len(nodes) == 1
        part.memory_bytes = _mem_total(host.read("/proc/meminfo" if alone else f"{NODES}/node{number}/meminfo"))
        part.sources |= {"numa": "sysfs", "memory_bytes": "procfs" if alone else "sysfs"}
        parts.append(part)
    notes = [f"NUMA node {number} has memory but no CPU: it is no device" for number, cpus in nodes.items() if cpus == set()]
    return parts, notes


def _node_names(host: Host) -> list[str]:
    return [name for name in host.names(NODES) if re.fullmatch("node[0-9]{1,6}", name)]


def _add_cores(host: Host, part: Part, cpus: Sequence[int], cpuinfo: str) -> None:
    """One logical CPU for each physical core: its first hardware thread that may be used."""
    siblings, source = _siblings(host, cpus), "sysfs"
    if siblings is None:
        siblings, source = _siblings_by_core_id(cpuinfo, cpus), "procfs"
    if siblings is None:
        siblings, source = {}, "guess"
    seen: set[int] = set()
    cores = []
    for cpu in cpus:
        if cpu not in seen:
            cores.append(cpu)
            seen |= siblings.get(cpu, set())
    part.cores, part.threads = tuple(cores), len(cores) or None
    part.sources |= {"cores": source, "threads": source}


def _siblings(host: Host, cpus: Sequence[int]) -> dict[int, set[int]] | None:
    """First CPU of a core -> all CPUs of that core; None where one is unknown. Reads one file a core, not one a CPU."""
    known: dict[int, set[int]] = {}
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        listed = _cpu_list(host.read(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"))
        if not listed or cpu not in listed:
            return None
        known[cpu] = listed
        seen |= listed
    return known


def _siblings_by_core_id(cpuinfo: str, cpus: Sequence[int]) -> dict[int, set[int]] | None:
    """The same from the socket and core numbers in /proc/cpuinfo, where sysfs is not mounted; None where one is unknown."""
    core_of: dict[int, tuple[str, str]] = {}
    for block in cpuinfo.split("\n\n"):
        found = [re.search(rf"^{key}\s*:\s*([0-9]{{1,6}})$", block, re.M) for key in ("processor", "physical id", "core id")]
        processor, socket, core = (match and match[1] for match in found)
        if processor and socket and core:
            core_of[int(processor)] = socket, core
    if not all(cpu in core_of for cpu in cpus):
        return None
    cpus_of: dict[tuple[str, str], set[int]] = {}
    for cpu in cpus:
        cpus_of.setdefault(core_of[cpu], set()).add(cpu)
    return {cpu: cpus_of[core_of[cpu]] for cpu in cpus}


def _cpu_list(text: str | None) -> set[int] | None:
    """`0-3,8-11` -> the numbers; the empty set for an empty list; None where there is none or it is garbled."""
    if text is None:
        return None
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = re.fullmatch("([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            return None
        cpus.update(range(first, last + 1))
    return cpus


def _links(host: Host, parts: Sequence[Part]) -> list[Link]:
    """NODE between the nodes of one socket, SYS between sockets, "" where sockets are unknown."""
    if len(parts) < 2:
        return []
    sockets = [_socket(host, part.cores[0]) for part in parts]
    links = []
    for a, b in combinations(range(len(parts)), 2):
        known = sockets[a] is not None and sockets[b] is not None
        kind = ("NODE" if sockets[a] == sockets[b] else "SYS") if known else ""
        links.append(Link(a, b, kind, source="sysfs" if known else "guess", backend="cpu"))
    return links


def _socket(host: Host, cpu: int) -> str | None:
    text = (host.read(f"{CPUS}/cpu{cpu}/topology/physical_package_id") or "").strip()
    return text if re.fullmatch("[0-9]{1,9}", text) else None  # -1 where firmware does not tell


# memory and limits


def _mem_total(text: str | None) -> int | None:
    """Bytes of the line `MemTotal: N kB`, in /proc/meminfo and a node's meminfo alike."""
    match = re.search(r"\bMemTotal:\s*([0-9]{1,15}) kB", text or "")
    return int(match[1]) * 1024 or None if match else None


def _apply(limit: Limits, parts: Sequence[Part]) -> list[str]:
    """Cuts threads and memory by the control groups' limits, shared by the nodes by what each has; says so in notes."""
    notes = []
    cores = sum(part.threads or 0 for part in parts)
    if limit.cpus is not None and limit.cpus < cores:
        for part in parts:
            if part.threads:
                part.threads = max(1, int(limit.cpus * part.threads / cores))
                part.sources["threads"] = "cgroup"
        threads = sum(part.threads or 0 for part in parts)
        notes.append(f"CPU quota {round(limit.cpus, 2):g} of {_count(cores, 'core')}: {_count(threads, 'thread')}")
    sizes = [part.memory_bytes for part in parts]
    known = [size for size in sizes if size is not None]
    total = sum(known) if len(known) == len(parts) else None
    if limit.memory_bytes is not None and (total is None or limit.memory_bytes < total):
        for part, size in zip(parts, sizes, strict=True):
            share = limit.memory_bytes // len(parts) if total is None else limit.memory_bytes * (size or 0) // total
            if share and (size is None or share < size):
                part.memory_bytes = share
                part.sources["memory_bytes"] = "cgroup"
        notes.append(f"memory limit {_gib(limit.memory_bytes)}" + (f" of {_gib(total)}" if total else ""))
    return notes


# other systems


def _darwin(host: Host) -> Probe:
    output = host.run("sysctl", *SYSCTL)
    rows = dict(line.split(": ", 1) for line in (output.stdout if output else "").splitlines() if ": " in line)
    name = rows.get(SYSCTL[0], "").strip() or None
    flags = frozenset({"avx2"} if rows.get("hw.optional.avx2_0", "").strip() == "1" else ())
    apple = name is not None and name.startswith("Apple ")
    chip = Chip(
        name,
        "-".join(name.lower().split()[:2]) if name and apple else None,
        native_units(flags, host.machine),
        {
            "native": "sysctl" if flags else "guess",
            **({"name": "sysctl"} if name else {}),
            **({"arch": "sysctl"} if apple else {}),
        },
    )
    part = Part()
    part.threads, part.memory_bytes = positive(rows.get("hw.physicalcpu")), positive(rows.get("hw.memsize"))
    part.sources = {"threads": "sysctl", "memory_bytes": "sysctl"}
    notes = []
    if rows.get("hw.optional.arm.FEAT_BF16", "").strip() == "1":
        # torch is built without oneDNN there, and Accelerate has no bf16 product: bf16 would run in plain loops.
        notes.append("the CPU has BF16 instructions, but torch does not use them on macOS")
    return _ready(chip, [part], [], notes)


def _other(host: Host) -> Probe:
    """Windows and the rest: how many CPUs there are is all that is asked."""
    chip = Chip(None, None, native_units(frozenset(), host.machine), {"native": "guess"})
    device = _device(0, chip, Part())
    cpus = _count(host.cpu_count, "logical CPU") if host.cpu_count else "a CPU"
    return Probe("cpu", "ready", f"{cpus}; cores and memory are not read on {host.system}", devices=(device,))


# the answer


def _ready(chip: Chip, parts: Sequence[Part], links: Iterable[Link], notes: Iterable[str]) -> Probe:
    devices = tuple(_device(i, chip, part) for i, part in enumerate(parts))
    return Probe("cpu", "ready", _reason(chip.native, parts), devices=devices, links=tuple(links), notes=tuple(notes))


def _device(index: int, chip: Chip, part: Part) -> Device:
    known = {"numa": part.numa, "cores": part.cores or None, "threads": part.threads, "memory_bytes": part.memory_bytes}
    sources = {name: source for name, source in part.sources.items() if known.get(name) is not None}
    return Device(
        "cpu",
        index,
        chip.name,
        None if part.numa is None else f"node{part.numa}",
        part.memory_bytes,
        part.numa,
        chip.arch,
        part.cores or None,
        part.threads,
        chip.native,
        {**chip.sources, **sources},
    )


def _reason(native: Mapping[str, str], parts: Sequence[Part]) -> str:
    """`2 cores on 1 NUMA node, AVX512-BF16, 23.4 GiB`, without what is unknown."""
    cores = [len(part.cores) or part.threads for part in parts]
    sizes = [part.memory_bytes for part in parts]
    nodes = f" on {_count(len(parts), 'NUMA node')}" if parts[0].numa is not None else ""
    texts = [
        _count(sum(filter(None, cores)), "core") + nodes if all(cores) else "a CPU",
        native.get("bf16", native["fp32"]),
        *([_gib(sum(filter(None, sizes)))] if all(sizes) else []),
    ]
    return ", ".join(texts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
