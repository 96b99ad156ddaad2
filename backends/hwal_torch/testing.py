"""The runtime suite: what every torch runtime must keep. Inherit it, with pytest, and name a device:

    class TestMyRuntime(RuntimeSuite):
        device = "mine:3"

Run as it stands (`hwal selftest`) it takes the device that HWAL_DEVICE names. A docstring's first line is the promise; a
test that cannot apply to a device is skipped with the reason. Worlds are real processes.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from hwal.env import DEVICE, Settings
from hwal.errors import EXIT_PREEMPTED, HwalError
from hwal.runtime import Backend
from hwal.values import Plan
from hwal_torch.harness import Outcome, Task, plan_for, run_world
from hwal_torch.suite_tasks import Trial, alone, evaluate, look, misuse, train, train_by_hand, train_two

SAME = 1e-6  # largest relative difference of two fp32 losses that are the same
FP32 = Settings(precision="fp32")
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
)


def largest_difference(losses: list[float], others: list[float]) -> float:
    """The largest relative difference between two curves of the same length."""
    assert len(losses) == len(others), f"{len(losses)} steps against {len(others)}"
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, others, strict=True))


def losses_of(run_dir: Path) -> list[float]:
    """The curve that a run left in metrics.jsonl."""
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def seen(ranks: list[list[int]]) -> list[int]:
    """The ids of a global batch, from those of each rank: a rank without rows runs the first of the batch as a ghost."""
    ghost = next(ids[0] for ids in ranks if ids)
    rows = [ids for ids in ranks if ids != [ghost] or ids is next(own for own in ranks if ghost in own)]
    return [i for ids in rows for i in ids]


@pytest.mark.slow
class RuntimeSuite:
    """Tests of one device's torch runtime."""

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
            return 3
        for size in (3, 2):
            try:
                plan_for(self.device, size, Settings())
            except HwalError:
                continue
            return size
        return 1

    def worlds(self, *sizes: int) -> list[int]:
        """Those of `sizes` that the device can hold."""
        held = [size for size in sizes if size <= self.largest_world]
        if not held:
            pytest.skip(f"{self.device} holds {self.largest_world} rank(s), this needs {min(sizes)}")
        return held

    def run(self, size: int, task: Task, *args: Any, folder: Path, settings: Settings = FP32, **options: Any) -> list[Outcome]:
        return run_world(self.device, size, task, *args, run_dir=folder, settings=settings, **options)

    def results(self, size: int, task: Task, *args: Any, **options: Any) -> list[Any]:
        """The results of all ranks, none of which failed."""
        outcomes = self.run(size, task, *args, **options)
        for outcome in outcomes:
            assert outcome.error is None and outcome.exit_code is None, f"rank {outcome.rank}: {outcome.error or outcome}"
        return [outcome.result for outcome in outcomes]

    def curve(self, size: int, trial: Trial, folder: Path, settings: Settings = FP32) -> tuple[list[float], list[list[int]]]:
        """Losses of a run, and the ids that all ranks together saw at each step; checks that all ranks end with one model."""
        ranks = self.results(size, train, trial, folder=folder, settings=settings)
        for rank in ranks:
            assert all(torch.equal(rank["weights"][name], value) for name, value in ranks[0]["weights"].items()), (
                "weights differ"
            )
        steps = [[rank["steps"][n]["ids"] for rank in ranks] for n in range(len(ranks[0]["steps"]))]
        return losses_of(folder)[-len(steps) :], [sorted(seen(step)) for step in steps]

    # P1

    def test_ranks_see_each_other(self, tmp_path: Path) -> None:
        """P1: after start-up every rank has seen all others."""
        for size in self.worlds(1, 2, 3):
            ranks = self.results(size, look, folder=tmp_path / str(size))
            assert [rank["rank"] for rank in ranks] == list(range(size))
            assert all(rank["world_size"] == size and rank["sum_of_ranks"] == sum(range(size)) for rank in ranks)

    def test_a_missing_rank_is_named(self, tmp_path: Path) -> None:
        """P1: a world that is not whole is an error that names who is missing."""
        (size,) = self.worlds(2)
        outcomes = self.run(size, look, folder=tmp_path, settings=Settings(start_timeout=2), absent=(1,))
        assert "WorldError" in (outcomes[0].error or "") and "rank 1 missing" in (outcomes[0].error or "")

    # P2

    @pytest.mark.parametrize("loader", ["map", "stream", "weighted", "batched", "whole"])
    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_same_curve(self, tmp_path: Path, text: bool, loader: str) -> None:
        """P2: the same samples and the same losses at every world, with accumulation, ragged ends and lengths that vary."""
        trial = Trial(text=text, loader=loader, optimizer="adamw" if text else "sgd")
        losses, samples = self.curve(1, trial, tmp_path / "one")
        assert len(losses) == 12 and {len(ids) for ids in samples} == {8, 2}
        cases = [(1, 3), *((size, micro) for size in (2, 3) if size <= self.largest_world for micro in (None, 2))]
        for size, micro in cases:
            settings = Settings(precision="fp32", micro_batch=micro)
            other, also = self.curve(size, trial, tmp_path / f"{size}-{micro}", settings)
            assert also == samples, f"world {size}, micro-batch {micro}: other samples"
            assert largest_difference(other, losses) <= SAME, f"world {size}, micro-batch {micro}"

    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_the_loop_by_hand(self, tmp_path: Path, text: bool) -> None:
        """P2: the losses are those of the plain loop over the same batches, clipping and schedule included."""
        trial = Trial(text=text, optimizer="sgd", clip=0.3)
        losses, seen = self.curve(1, trial, tmp_path)
        assert largest_difference(losses, train_by_hand(trial, Settings().seed, seen)) <= 1e-5

    def test_two_optimizers_and_an_idle_parameter(self, tmp_path: Path) -> None:
        """P2: several optimizers, parameters without gradient and a loop that was left early give the same curve everywhere."""
        trial = Trial(epochs=2)
        one = self.results(1, train_two, trial, folder=tmp_path / "one")[0]
        losses = losses_of(tmp_path / "one")
        assert len(losses) == one["steps"] == 8 and one["signature"] == "(x: 'torch.Tensor') -> 'torch.Tensor'"
        for size, micro in ((1, 3), *((size, None) for size in (2, 3) if size <= self.largest_world)):
            settings = Settings(precision="fp32", micro_batch=micro)
            for rank in self.results(size, train_two, trial, folder=tmp_path / f"{size}-{micro}", settings=settings):
                assert rank["signature"] == one["signature"]
            assert largest_difference(losses_of(tmp_path / f"{size}-{micro}"), losses) <= SAME

    @pytest.mark.parametrize("kind", ["never prepared", "unfrozen later", "called in parts"])
    def test_no_rank_trains_alone(self, tmp_path: Path, kind: str) -> None:
        """P2: a gradient that would stay one rank's own is an error on every rank."""
        (size,) = self.worlds(2)
        for outcome in self.run(size, alone, kind, folder=tmp_path):
            assert "ScriptError: a gradient of this step was not brought together" in (outcome.error or ""), outcome

    def test_an_evaluation_left_open(self, tmp_path: Path) -> None:
        """P2: an evaluation feed that was not read to its end leaves training as it is."""
        one = self.results(1, alone, "evaluation left open", folder=tmp_path / "one")[0]
        for size in self.worlds(2, 3):
            for weights in self.results(size, alone, "evaluation left open", folder=tmp_path / str(size)):
                assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in one.items())

    def test_fewer_rows_than_ranks(self, tmp_path: Path) -> None:
        """P2: a rank without rows keeps in step and changes nothing."""
        (size,) = self.worlds(3)
        trial = Trial(rows=10, batch=4, optimizer="sgd")
        losses, seen = self.curve(1, trial, tmp_path / "one")
        other, also = self.curve(size, trial, tmp_path / "three")
        assert min(map(len, seen)) < size and also == seen
        assert largest_difference(other, losses) <= SAME

    def test_virtual_ranks(self, tmp_path: Path) -> None:
        """P2: under --virtual-ranks the curve is the same at every world, with dropout too."""
        trial = Trial(text=True, dropout=0.3)
        settings = Settings(precision="fp32", virtual_ranks=6)
        losses, seen = self.curve(1, trial, tmp_path / "one", settings)
        assert losses != self.curve(1, trial, tmp_path / "plain")[0], "dropout did nothing"
        for size in (2, 3):
            if size <= self.largest_world:
                other, also = self.curve(size, trial, tmp_path / str(size), settings)
                assert also == seen and largest_difference(other, losses) <= SAME

    def test_loader_workers(self, tmp_path: Path) -> None:
        """P2: random augmentation in loader workers is a sample's own, whatever the world and the micro-batch."""
        trial = Trial(workers=2, noise=0.5, epochs=2, optimizer="sgd")
        losses, _ = self.curve(1, trial, tmp_path / "one")
        assert losses != self.curve(1, Trial(epochs=2, optimizer="sgd"), tmp_path / "plain")[0]
        for size in self.worlds(1, 2):
            other, _ = self.curve(size, trial, tmp_path / str(size), Settings(precision="fp32", micro_batch=2))
            assert largest_difference(other, losses) <= SAME

    def test_evaluation_within_training(self, tmp_path: Path) -> None:
        """P2: an evaluation feed reads every row once over all ranks, and leaves the training feed around it alone."""
        for size in self.worlds(1, 2, 3):
            ranks = self.results(size, evaluate, Trial(epochs=1), folder=tmp_path / str(size))
            for step in range(ranks[0]["steps"]):
                assert sorted(i for rank in ranks for i in rank["ids"][step]) == list(range(26))
            assert all(mean == 12.5 for rank in ranks for mean in rank["means"])
            assert ranks[0]["steps"] == 4

    def test_equal_weights_and_tied_ones(self, tmp_path: Path) -> None:
        """scope builds equal weights on every rank; tied ones stay tied; a deep copy of a prepared model is independent."""
        size = self.worlds(1, 2)[-1]
        ranks = self.results(size, look, folder=tmp_path)
        for rank in ranks:
            assert rank["tied"] and rank["copied"] == 0 and rank["own"] > 0
            assert all(torch.equal(rank["weights"][name], value) for name, value in ranks[0]["weights"].items())

    # P3

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

    # P4

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
            assert all("the loss of step 5 is nan" in (outcome.error or "") for outcome in outcomes), outcomes
            skip = Settings(precision="fp32", on_nan="skip")
            rank = self.results(size, train, Trial(nan_at=4, epochs=1), folder=tmp_path / f"skip-{size}", settings=skip)[0]
            before = self.results(size, train, Trial(epochs=1, steps=3), folder=tmp_path / f"before-{size}")[0]
            assert len(rank["steps"]) == 4
            assert all(torch.equal(rank["weights"][name], value) for name, value in before["weights"].items())

    # what a run leaves, and what it says

    def test_metrics(self, tmp_path: Path) -> None:
        """metrics.jsonl holds one object a global step, with the mean loss of the global batch."""
        size = self.worlds(1, 2)[-1]
        losses, seen = self.curve(size, Trial(), tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 13))
        assert [line["loss"] for line in lines] == losses
        assert [line["samples"] for line in lines] == [len(ids) for ids in seen]
        assert [line["lr"] for line in lines] == pytest.approx([0.02 / (1 + 0.1 * n) for n in range(12)])
        assert all(line["seconds"] > 0 for line in lines)
        plan = json.loads((tmp_path / "plan.json").read_text())
        assert plan["strategy"]["value"] != "auto" and plan["strategy"]["why"]

    def test_precision(self, tmp_path: Path) -> None:
        """P6: autocast runs matrix products in the precision that the plan decided."""
        _, plan = self.resolved
        name = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(plan.precision.value, "torch.float32")
        assert self.results(1, look, folder=tmp_path, settings=Settings())[0]["dtype"] == name

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_low_precision_follows_fp32(self, tmp_path: Path, precision: str) -> None:
        """P6: the same job in a lower precision, with the loss scaler where it needs one, follows fp32's curve."""
        try:
            plan_for(self.device, 1, Settings(precision=precision))
        except HwalError as error:
            pytest.skip(f"{self.device}: {error.what}")
        losses, _ = self.curve(1, Trial(text=True), tmp_path / "fp32")
        for size in self.worlds(1, 2):
            other, _ = self.curve(size, Trial(text=True), tmp_path / str(size), Settings(precision=precision, micro_batch=3))
            assert largest_difference(other, losses) <= 0.03 and other[-1] < other[0]

    def test_memory(self, tmp_path: Path) -> None:
        """Memory is told in bytes with its source, and None where it is unknown."""
        used, peak, total, source = self.results(1, look, folder=tmp_path)[0]["memory"]
        assert source and all(figure is None or figure > 0 for figure in (used, peak, total))
        assert used is None or peak is None or used <= peak * 1.01

    @pytest.mark.parametrize("kind", MISUSES)
    def test_misuse(self, tmp_path: Path, kind: str) -> None:
        """A script's mistake is an error that says what to do."""
        outcome = self.run(1, misuse, kind, folder=tmp_path)[0]
        assert (outcome.error or "").startswith("ScriptError") and "try:" in (outcome.error or ""), outcome
