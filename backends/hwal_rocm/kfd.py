"""KFD's topology in sysfs: what the amdgpu driver tells of its compute devices and of the links between them.

A node with SIMDs is a GPU, or a partition of one (CPX, DPX: several nodes with the same unique id); one with cores is a CPU's
NUMA node. `io_links` are the links that there are, `p2p_links` the paths over PCIe that GPUs may reach each other by. Types
and units: include/uapi/linux/kfd_sysfs.h (11 = xGMI, 2 = PCIe; MB/s; a weight of 15 is one xGMI hop).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from hwal.host import Host
from hwal.topology import Device, Link
from hwal_rocm.present import NODES

XGMI, PCIE = 11, 2
PROCESSES = "/sys/class/kfd/kfd/proc"
KINDS = ("cpu_cores_count", "simd_count")  # what tells CPU nodes from GPUs


class Edge(NamedTuple):
    """One direction of a link: type, weight, and MB/s of one link and of the bundle (0 where the driver does not tell)."""

    kind: int
    weight: int = 0
    least: int = 0
    most: int = 0


@dataclass(frozen=True)
class Node:
    """One node: its properties, bytes of its own memory, its links and PCIe paths to other nodes by their number, its users."""

    number: int
    facts: Mapping[str, int]
    memory: int | None = None
    links: Mapping[int, Edge] = field(default_factory=dict)
    paths: Mapping[int, Edge] = field(default_factory=dict)
    users: int | None = None

    @property
    def lacks(self) -> str | None:
        """What its properties do not tell, although every driver writes it: without it a GPU would pass for a CPU."""
        return next((name for name in KINDS if name not in self.facts), None) if self.facts else None

    @property
    def is_gpu(self) -> bool:
        return self.lacks is None and self.facts.get("simd_count", 0) > 0 and self.facts["cpu_cores_count"] == 0

    @property
    def unique(self) -> str:
        """The chip's own number, as ROCR_VISIBLE_DEVICES takes it; "" where an old driver has none."""
        number = self.facts.get("unique_id", 0)
        return f"GPU-{number:016x}" if number else ""


def numbers(text: str | None) -> dict[str, int]:
    """The `name value` lines of a properties file. Lines that are no such pair are left out."""
    pairs = (re.fullmatch(r"(\w+) (\d+)", line.strip()) for line in (text or "").splitlines())
    return {pair[1]: int(pair[2]) for pair in pairs if pair}


def nodes(host: Host, root: str = NODES) -> list[Node]:
    """All nodes, by number."""
    found = []
    users = _users(host)
    for name in sorted((name for name in host.names(root) if name.isdigit()), key=int):
        folder = f"{root}/{name}"
        facts = numbers(host.read(f"{folder}/properties"))
        if facts:
            links, paths = _edges(host, f"{folder}/io_links"), _edges(host, f"{folder}/p2p_links")
            own = (host.read(f"{folder}/gpu_id") or "").strip()
            seen = None if users is None or not own.isdigit() else users[own]
            found.append(Node(int(name), facts, _memory(host, facts, folder), links, paths, seen))
        else:  # a container was not given this device
            found.append(Node(int(name), facts))
    return found


def _users(host: Host) -> Counter[str] | None:
    """Other processes with memory on a GPU, by its gpu_id; None where the driver does not list them."""
    if "proc" not in host.names(PROCESSES.rpartition("/")[0]):
        return None
    own = host.link("/proc/self")
    taken = [
        name.removeprefix("vram_")
        for process in host.names(PROCESSES)
        if process != own
        for name in host.names(f"{PROCESSES}/{process}")
        if name.startswith("vram_") and (host.read(f"{PROCESSES}/{process}/{name}") or "").strip() not in ("", "0")
    ]
    return Counter(taken)


def _edges(host: Host, folder: str) -> dict[int, Edge]:
    found = {}
    for name in host.names(folder):
        facts = numbers(host.read(f"{folder}/{name}/properties"))
        if {"type", "node_to"} <= set(facts):
            least, most = facts.get("min_bandwidth", 0), facts.get("max_bandwidth", 0)
            found[facts["node_to"]] = Edge(facts["type"], facts.get("weight", 0), least, most)
    return found


def _memory(host: Host, facts: Mapping[str, int], folder: str) -> int | None:
    """Bytes on the board: its memory banks' (heap types 1 and 2), for the properties themselves often say 0."""
    banks = [numbers(host.read(f"{folder}/mem_banks/{name}/properties")) for name in host.names(f"{folder}/mem_banks")]
    size = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
    return size or facts.get("local_mem_size") or None


def arch(node: Node) -> str | None:
    """`gfx90a` from its version number, 9.0.10 in decimal."""
    version = node.facts.get("gfx_target_version", 0)
    if not version:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def address(node: Node) -> str | None:
    """The PCI address from its location: bus, device, function."""
    place = node.facts.get("location_id")
    if not place:
        return None
    domain = node.facts.get("domain", 0)
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def devices(found: list[Node], source: str) -> tuple[Device, ...]:
    """A Device for each GPU node. Partitions of one chip name it, and have ids of their own (the chip's id, /0, /1 …)."""
    gpus = [node for node in found if node.is_gpu]
    cpus = [node.number for node in found if node.facts.get("cpu_cores_count", 0)]
    counts = Counter(node.unique for node in gpus if node.unique)
    seen: Counter[str] = Counter()
    result = []
    for i, node in enumerate(gpus):
        whole = node.unique or None
        part = whole is not None and counts[whole] > 1
        own = f"{whole}/{seen[whole or '']}" if part else whole or address(node)
        seen[whole or ""] += 1
        near = [number for number in node.links if number in cpus]
        numa = cpus.index(near[0]) if len(near) == 1 else None
        xgmi = [edge for edge in node.links.values() if edge.kind == XGMI]
        ports = tuple(edge.most * 1e6 for edge in xgmi) if all(edge.most for edge in xgmi) else ()
        known = {"numa": numa, "memory_bytes": node.memory, "arch": arch(node), "ports": ports or None, "users": node.users}
        result.append(
            Device(
                "rocm",
                i,
                name=f"AMD {arch(node) or 'GPU'}",
                id=own,
                memory_bytes=node.memory,
                numa=numa,
                arch=arch(node),
                part_of=whole if part else None,
                pci=address(node),
                ports=ports,
                outer=i,
                users=node.users,
                sources={name: source for name, value in known.items() if value is not None},
            )
        )
    return tuple(result)


def links(found: list[Node], source: str) -> tuple[Link, ...]:
    """A Link for each pair of GPU nodes: xGMI, PCIe, or nothing known. A speed of 0 is one that the driver did not tell."""
    gpus = [node for node in found if node.is_gpu]
    result = []
    for (a, one), (b, other) in combinations(enumerate(gpus), 2):
        edge = one.links.get(other.number) or one.paths.get(other.number) or Edge(0)
        name = {XGMI: "XGMI", PCIE: "PCIE"}.get(edge.kind, "")
        count = edge.most // edge.least if name == "XGMI" and edge.least else None
        result.append(
            Link(
                a,
                b,
                name,
                bandwidth=edge.most * 1e6 if edge.most and name else None,
                p2p=True if name == "XGMI" or other.number in one.paths else None,
                source=source,
                backend="rocm",
                count=count,
                distance=edge.weight or None,
            )
        )
    return tuple(result)
