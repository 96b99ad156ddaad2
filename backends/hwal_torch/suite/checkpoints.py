"""P3, portable checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hwal.env import Settings
from hwal_torch.suite.base import SAME, Suite, largest_difference, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import train


class CheckpointTests(Suite):
    """A run goes on from a checkpoint as if it had never stopped."""

    @pytest.mark.parametrize(("loader", "feeds", "save_at"), [("map", 1, 6), ("stream", 1, 6), ("map", 2, 14), ("map", 2, 8)])
    def test_resume(self, tmp_path: Path, loader: str, feeds: int, save_at: int) -> None:
        """P3: a run resumed within an epoch goes on as if it had never stopped: order, dropout, schedule, optimizer."""
        trial = Trial(dropout=0.2, noise=0.1, loader=loader, feeds=feeds, save_at=save_at)
        whole = self.results(1, train, trial, folder=tmp_path / "whole")[0]
        resumed = Settings(precision="fp32", resume=str(tmp_path / "whole"))
        rest = self.results(1, train, replace(trial, save_at=None), folder=tmp_path / "rest", settings=resumed)[0]
        assert len(whole["steps"]) == 12 * feeds
        assert rest["steps"] == whole["steps"][save_at:]
        assert losses_of(tmp_path / "rest") == losses_of(tmp_path / "whole")[save_at:]
        assert rest["position"] == whole["position"]

    def test_resume_at_another_world(self, tmp_path: Path) -> None:
        """P3: a checkpoint of one process goes on in several, with the same losses; and back."""
        (size,) = self.worlds(2)
        trial = Trial(text=True, save_at=5)
        for before, after in ((1, size), (size, 1)):
            losses, _ = self.curve(before, trial, tmp_path / f"{before}")
            settings = Settings(precision="fp32", resume=str(tmp_path / f"{before}"))
            rest, _ = self.curve(after, Trial(text=True), tmp_path / f"{before}-{after}", settings)
            assert largest_difference(rest, losses[5:]) <= SAME
