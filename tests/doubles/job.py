"""A Job as the launcher would hand it to a Runtime, for one process with any number of devices."""

from __future__ import annotations

from pathlib import Path

from hwal.env import Settings
from hwal.runtime import Job
from hwal.topology import Device
from hwal.values import Caps, Decision, Plan, Process, World


def make_job(run_dir: Path, *, framework: str, devices: int = 1, settings: Settings | None = None) -> Job:
    decision = Decision("fp32", "a test")
    plan = Plan(
        backend="toy",
        framework=Decision(framework, "a test"),
        devices=tuple(Device("toy", index) for index in range(devices)),
        processes=(Process(0, tuple(range(devices))),),
        mesh={"dp": devices},
        precision=decision,
        strategy=Decision("auto", "a test"),
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    return Job(World(), plan, settings or Settings(), Caps(frameworks=(framework,)), run_dir, "train.py")
