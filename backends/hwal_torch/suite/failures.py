"""P4, preemption; losses that are no numbers; a script's own mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hwal.env import Settings
from hwal.errors import EXIT_PREEMPTED
from hwal_torch.suite.base import SAME, Suite, largest_difference
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import misuse, train

MISUSES = (
    "prepares a loader",
    "optimizer of another model",
    "prepares twice",
    "resumes within a pass with another batch",
    "steps outside of a feed",
    "goes back outside of a feed",
    "no end of epochs",
    "feeds a list",
    "splits by itself",
    "steps without a backward",
    "goes back twice",
    "never steps",
    "steps two at once",
    "steps with another",
)


class FailureTests(Suite):
    """What goes wrong is told, and nothing is lost."""

    def test_preempted(self, tmp_path: Path) -> None:
        """P4: after SIGTERM to one rank all ranks save at the same step and end; the resumed run loses nothing."""
        size = self.worlds(1, 2)[-1]
        whole, _ = self.curve(1, Trial(text=True), tmp_path / "whole")
        outcomes = self.run(size, train, Trial(text=True, stop_at=5), folder=tmp_path / "cut")
        assert [outcome.exit_code for outcome in outcomes] == [EXIT_PREEMPTED] * size, outcomes
        assert json.loads((tmp_path / "cut" / "preempted.json").read_text())["step"] in (5, 6)
        done = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
        settings = Settings(precision="fp32", resume=str(tmp_path / "cut"))
        rest, _ = self.curve(size, Trial(text=True), tmp_path / "cut", settings)
        assert largest_difference([step["loss"] for step in done] + rest, whole) <= SAME

    def test_a_loss_that_is_no_number(self, tmp_path: Path) -> None:
        """P4: a NaN loss ends the run before the update and names the step, or, under --on-nan skip, changes nothing."""
        for size in self.worlds(1, 2):
            outcomes = self.run(size, train, Trial(nan_at=5), folder=tmp_path / f"stop-{size}")
            told = "the loss of step 5 is nan" + (" on all ranks" if size > 1 else "") + "\n"
            assert all(told in (outcome.error or "") for outcome in outcomes), outcomes
            skip = Settings(precision="fp32", on_nan="skip")
            rank = self.results(size, train, Trial(nan_at=4, epochs=1), folder=tmp_path / f"skip-{size}", settings=skip)[0]
            before = self.results(size, train, Trial(epochs=1, steps=3), folder=tmp_path / f"before-{size}")[0]
            assert len(rank["steps"]) == 4
            assert all(torch.equal(rank["weights"][name], value) for name, value in before["weights"].items())

    def test_the_rank_of_a_bad_loss_is_named(self, tmp_path: Path) -> None:
        """P4: a NaN names the ranks whose part of the batch it came from, and the first parameter that it reached."""
        (size,) = self.worlds(2)
        for outcome in self.run(size, train, Trial(nan_at=5, nan_on=1), folder=tmp_path):
            assert "the loss of step 5 is nan on rank 1\n" in (outcome.error or ""), outcome
            assert "the gradient of " in (outcome.error or "") and "is the first that is not finite" in (outcome.error or "")

    @pytest.mark.parametrize("kind", MISUSES)
    def test_misuse(self, tmp_path: Path, kind: str) -> None:
        """A script's mistake is an error that says what to do."""
        outcome = self.run(1, misuse, kind, folder=tmp_path)[0]
        assert (outcome.error or "").startswith("ScriptError") and "try:" in (outcome.error or ""), outcome
