"""Worlds on the CPU to try checkpoints in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hwal.env import Settings
from hwal_torch.harness import Outcome, run_world

PLACES = [("single", 1), ("ddp", 2), ("fsdp:full", 2)]


def run(size: int, task: Any, *args: Any, folder: Path, **settings: Any) -> list[Outcome]:
    chosen = replace(Settings(precision="fp32"), **settings)
    return run_world("cpu", size, task, *args, run_dir=folder, settings=chosen)


def results(size: int, task: Any, *args: Any, folder: Path, **settings: Any) -> list[Any]:
    outcomes = run(size, task, *args, folder=folder, **settings)
    for outcome in outcomes:
        assert outcome.error is None and outcome.exit_code is None, outcome.error or outcome
    return [outcome.result for outcome in outcomes]


def error_of(size: int, task: Any, *args: Any, folder: Path, **settings: Any) -> str:
    """The error that all ranks end with."""
    outcomes = run(size, task, *args, folder=folder, **settings)
    assert all(outcome.error for outcome in outcomes), outcomes
    return str(outcomes[0].error)
