"""Several hosts that run one program: what they tell each other, and which of them writes. Run in XLA's environment.

Stand-in: XLA's CPU platform does not bring the devices of several processes together, so that each of these computes the
whole by itself. That a TPU's do is not shown here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal.env import Settings
from hwal.errors import EXIT_PREEMPTED
from hwal_torch.harness import Outcome, run_world
from hwal_torch.suite.base import FP32, largest_difference, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import train
from hwal_tpu.torch_runtime import SpmdTorchRuntime

pytestmark = pytest.mark.slow


class Alike(SpmdTorchRuntime):
    """Takes itself to be one of several hosts of a slice, and computes for all of them."""

    def _check_world(self, processes: int) -> None:
        return


def run(folder: Path, trial: Trial, settings: Settings = FP32, runtime: Any = Alike, size: int = 2) -> list[Outcome]:
    return run_world("tpu:cpu:2", size, train, trial, run_dir=folder, settings=settings, nodes=size, runtime=runtime, limit=400)


def test_hosts_train_as_one(tmp_path: Path) -> None:
    """Each gives its devices the same batches with the same dropout, and rank 0 writes the lines and the checkpoint."""
    trial = Trial(dropout=0.3, save_at=6)
    (alone,) = run(tmp_path / "alone", trial, runtime=None, size=1)
    outcomes = run(tmp_path / "two", trial)
    assert [outcome.error for outcome in (alone, *outcomes)] == [None] * 3
    assert losses_of(tmp_path / "two") == losses_of(tmp_path / "alone")
    for outcome in outcomes:
        assert outcome.result["steps"] == alone.result["steps"]
    (rest,) = run(tmp_path / "rest", replace(trial, save_at=None), replace(FP32, resume=str(tmp_path / "two")), None, 1)
    assert rest.error is None
    assert largest_difference(losses_of(tmp_path / "rest"), losses_of(tmp_path / "alone")[6:]) < 1e-6


def test_a_signal_to_one_host_ends_all(tmp_path: Path) -> None:
    """At one step, which is saved."""
    outcomes = run(tmp_path, Trial(stop_at=5))
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_PREEMPTED] * 2
    word = json.loads((tmp_path / "preempted.json").read_text())
    assert word["step"] == len(losses_of(tmp_path)) in (5, 6)


def test_hosts_that_do_not_come_together(tmp_path: Path) -> None:
    outcomes = run(tmp_path, Trial(), runtime=None)
    for outcome in outcomes:
        assert "the world has 2 processes, and PJRT has brought the devices of 1 together" in (outcome.error or ""), outcome
