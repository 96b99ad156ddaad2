"""A machine on paper, and what a command answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from hwal.topology import Device, Link
from hwal.values import HostFacts, Machine, Probe

CPU = Probe(
    "cpu",
    "ready",
    "4 cores",
    ms=1.25,
    devices=(
        Device(
            "cpu",
            0,
            name="Toy CPU",
            id="node0",
            memory_bytes=8 * 1024**3,
            numa=0,
            cores=(0, 1, 2, 3),
            threads=4,
            native={"bf16": "AMX-BF16", "fp32": "AVX512"},
            sources={"native": "procfs"},
        ),
    ),
)
NULL = Probe(
    "null",
    "ready",
    "3 imaginary devices",
    ms=0.04,
    devices=tuple(Device("null", i, name="imaginary device", id=f"null{i}", native={"fp32": "CPU"}) for i in range(3)),
    links=tuple(Link(a, b, "NULL", source="table", backend="null") for a, b in combinations(range(3), 2)),
)
BLOCKED = Probe("toy", "blocked", "the driver is too old: 470, and 525 is needed", "apt install toy-driver-525")
MACHINE = Machine(HostFacts("paper", "linux", "x86_64"), (CPU, NULL, BLOCKED))


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str
