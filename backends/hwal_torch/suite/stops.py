"""P4, preemption: a signal in any moment of a run, and the run that goes on from there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hwal.env import Settings
from hwal.errors import EXIT_FAILED, EXIT_PREEMPTED
from hwal.runtime import TorchRuntime
from hwal_torch.suite.base import SAME, Suite, largest_difference
from hwal_torch.suite.jobs import Net, Trial, loader_of, loss_of

TRIAL = Trial(text=True)  # 4 steps an epoch, 3 epochs
LAST = 12
MOMENTS = ("accumulation", "step", "schedule", "evaluation", "mean", "barrier", "saving")
EVALUATIONS = ("by one rank", "left early", "of one row", "with a mean each batch")
"""Evaluations that the ranks do not go through together, and one in which they wait for each other within a batch."""


def job(rt: TorchRuntime, moment: str, evaluations: str = "", again: bool = False) -> list[str]:
    """Trains, and after each epoch steps a schedule, evaluates, and saves. The last rank gets SIGTERM in the second epoch, at
    `moment`, unless the run goes on `again`. Returns what was done after epochs."""
    with rt.scope():
        model = Net(True, 0.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    rt.prepare(model, optimizer, scheduler)
    note_writes(rt)
    loader, rows = loader_of(TRIAL), Trial(text=True, rows=1 if evaluations == "of one row" else 26, batch=8)
    did: list[str] = []

    def now(name: str) -> None:
        whom = 0 if evaluations == "by one rank" else rt.world_size - 1
        if (name, rt.rank) == (moment, whom) and not again and (rt.epoch == 1 or name == "prepared"):
            os.kill(os.getpid(), signal.SIGTERM)

    now("prepared")
    for epoch in rt.epochs(3):
        for batch in rt.feed(loader):
            if rt.steps_done == 5:
                now("accumulation")
            rt.backward(loss_of(model, batch))
            if rt.step(optimizer) and rt.steps_done == 6:
                now("step")
        now("schedule")
        scheduler.step()
        did.append(f"schedule {epoch}")
        total = count = 0.0
        for number, batch in enumerate(
            rt.feed(loader_of(rows), train=False) if rt.is_main or evaluations != "by one rank" else ()
        ):
            now("evaluation")
            with torch.no_grad():
                batch_sum, batch_count = loss_of(model, batch)
            total, count = total + float(batch_sum), count + float(batch_count)
            if evaluations == "with a mean each batch":
                rt.mean(batch_sum, batch_count)
            if evaluations == "left early" and number == rt.rank:
                break
        now("mean")
        rt.log(score=rt.mean(total, count))
        did.append(f"evaluation {epoch}")
        now("barrier")
        rt.barrier()
        rt.save()
        now("saving")
    return did


def note_writes(rt: TorchRuntime) -> None:
    """Every checkpoint that is written gets a line in the run's folder."""
    inner: Callable[..., Any] = rt.checkpoints.writing

    @contextmanager
    def writing(target: Path, manifest: Any) -> Iterator[Path]:
        with inner(target, manifest) as folder:
            yield folder
        with (rt.run_dir / "writes").open("a") as file:
            file.write(f"{target.name}\n")

    rt.checkpoints.writing = writing  # type: ignore[method-assign]


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


class StopTests(Suite):
    """Asked to end, all ranks save the same step, once, and end; the run that goes on does the rest as if nothing had been."""

    def stopped(self, folder: Path, size: int, moment: str, strategy: str = "auto", evaluations: str = "") -> list[str]:
        """A run stopped at `moment` and resumed has the curve of one that was not; what rank 0 did after the resume."""
        settings = Settings(precision="fp32", strategy=strategy, micro_batch=2)
        self.results(size, job, "none", evaluations, folder=folder / "whole", settings=settings)
        cut = folder / "cut"
        outcomes = self.run(size, job, moment, evaluations, folder=cut, settings=settings)
        assert [outcome.exit_code for outcome in outcomes] == [EXIT_PREEMPTED] * size, outcomes
        told = json.loads((cut / "preempted.json").read_text())
        saved = sorted(path.name for path in (cut / "checkpoints").iterdir())
        assert saved[-1] == f"step-{told['step']:08d}"
        writes = (cut / "writes").read_text().split()
        assert len(set(writes)) == len(writes), "a step was saved twice"
        resumed = Settings(precision="fp32", strategy=strategy, micro_batch=2, resume=str(cut))
        did = self.results(size, job, moment, evaluations, True, folder=cut, settings=resumed)
        whole, lines = lines_of(folder / "whole"), lines_of(cut)
        assert [line["step"] for line in lines] == list(range(1, LAST + 1))
        assert largest_difference([line["loss"] for line in lines], [line["loss"] for line in whole]) <= SAME
        assert [line["lr"] for line in lines] == pytest.approx([line["lr"] for line in whole])
        scores = [[line.get("score") for line in run] for run in (lines, whole)]
        assert scores[0] == pytest.approx(scores[1], nan_ok=True)
        return did[0]

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_in_any_moment(self, tmp_path: Path, moment: str) -> None:
        """P4: in accumulation, training, evaluation, between, and while it saves; what went on after an epoch is done again."""
        for size in self.worlds(1, 2):
            did = self.stopped(tmp_path / str(size), size, moment)
            last = ["schedule 2", "evaluation 2"]
            within = moment not in ("saving",)
            assert did == (["schedule 1", "evaluation 1"] if within else []) + last

    @pytest.mark.parametrize("moment", ["step", "evaluation", "mean"])
    def test_under_sharding(self, tmp_path: Path, moment: str) -> None:
        """P4: where every forward needs all ranks."""
        (size,) = self.worlds(2)
        self.stopped(tmp_path, size, moment, "fsdp:full")

    @pytest.mark.parametrize("evaluations", EVALUATIONS)
    def test_in_an_evaluation_that_ranks_do_not_share(self, tmp_path: Path, evaluations: str) -> None:
        """P4: ranks that evaluate alone, leave a loop before others or have no rows hold nobody up."""
        (size,) = self.worlds(2)
        self.stopped(tmp_path, size, "evaluation", evaluations=evaluations)

    def test_before_the_first_step(self, tmp_path: Path) -> None:
        """P4: there is nothing to save, and nothing stands in the way of a new start."""
        for size in self.worlds(1, 2):
            outcomes = self.run(size, job, "prepared", folder=tmp_path / str(size))
            assert [outcome.exit_code for outcome in outcomes] == [EXIT_FAILED] * size, outcomes
            assert not (tmp_path / str(size) / "checkpoints").exists()
            self.results(size, job, "prepared", "", True, folder=tmp_path / str(size))
