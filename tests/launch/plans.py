"""Plans for the launch tests."""

from __future__ import annotations

from hwal.topology import Device
from hwal.values import Decision, Plan, Process


def plan(processes: int = 1, framework: str = "torch", threads: int | None = 1, nodes: int = 1) -> Plan:
    return Plan(
        backend="null",
        framework=Decision(framework, "test"),
        devices=tuple(Device("null", index) for index in range(processes)),
        processes=tuple(Process(rank, (rank,), None, threads) for rank in range(processes)),
        mesh={"dp": nodes * processes},
        precision=Decision("fp32", "test"),
        strategy=Decision("auto", "test"),
        nodes=nodes,
    )
