"""What the parts of the suite share: worlds of real processes on the device, and curves to compare."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from hwal.backend import Backend
from hwal.env import DEVICE, Settings
from hwal.errors import HwalError
from hwal.values import AUTO, Plan
from hwal_torch.harness import Outcome, Task, plan_for, run_world
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import train

Curve = tuple[list[float], list[list[int]]]
SAME = 1e-6  # largest relative difference of two fp32 losses that are the same
FP32 = Settings(precision="fp32")


def largest_difference(losses: list[float], others: list[float]) -> float:
    """The largest relative difference between two curves of the same length."""
    assert len(losses) == len(others), f"{len(losses)} steps against {len(others)}"
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, others, strict=True))


def losses_of(run_dir: Path) -> list[float]:
    """The curve that a run left in metrics.jsonl."""
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
class Suite:
    """A part of the runtime suite: tests of one device's torch runtime."""

    device: ClassVar[str] = os.environ.get(DEVICE, "auto")

    @cached_property
    def resolved(self) -> tuple[Backend, Plan]:
        return plan_for(self.device, 1, Settings())

    @property
    def largest_world(self) -> int:
        """How many ranks the device can hold; no more than the suite needs."""
        backend, _ = self.resolved
        if backend.caps.collectives is None:
            return 1
        if backend.caps.shares_devices:
            return 4
        for size in (4, 3, 2):
            try:
                plan_for(self.device, size, Settings())
            except HwalError:
                continue
            return size
        return 1

    def named(self, strategy: str) -> str:
        """The strategy as it is asked for: `single` is of one device, and a process may drive several."""
        _, plan = self.resolved
        return AUTO if strategy == "single" and len(plan.processes[0].devices) > 1 else strategy

    def worlds(self, *sizes: int) -> list[int]:
        """Those of `sizes` that the device can hold."""
        held = [size for size in sizes if size <= self.largest_world]
        if not held:
            pytest.skip(f"{self.device} holds {self.largest_world} rank(s), this needs {min(sizes)}")
        return held

    def needs(self, settings: Settings) -> None:
        """Skips where the device cannot be run so."""
        try:
            plan_for(self.device, 1, settings)
        except HwalError as error:
            pytest.skip(f"{self.device}: {error.what}")

    def run(self, size: int, task: Task, *args: Any, folder: Path, settings: Settings = FP32, **options: Any) -> list[Outcome]:
        return run_world(self.device, size, task, *args, run_dir=folder, settings=settings, **options)

    def results(self, size: int, task: Task, *args: Any, **options: Any) -> list[Any]:
        """The results of all ranks, none of which failed."""
        outcomes = self.run(size, task, *args, **options)
        for outcome in outcomes:
            assert outcome.error is None and outcome.exit_code is None, f"rank {outcome.rank}: {outcome.error or outcome}"
        return [outcome.result for outcome in outcomes]

    def curve(self, size: int, trial: Trial, folder: Path, settings: Settings = FP32, **options: Any) -> Curve:
        """Losses of a run, and the ids that all ranks together saw at each step; checks that all ranks end with one model."""
        ranks = self.results(size, train, trial, folder=folder, settings=settings, **options)
        for rank in ranks:
            assert all(torch.equal(rank["weights"][name], value) for name, value in ranks[0]["weights"].items()), (
                "weights differ"
            )
        steps = [[rank["steps"][n]["ids"] for rank in ranks] for n in range(len(ranks[0]["steps"]))]
        return losses_of(folder)[-len(steps) :], [sorted(i for ids in step for i in ids) for step in steps]
