"""A process a chip, as far as no chip is needed: a world of one by torch_xla's own collectives, two by a stand-in's.

What only a TPU can show: that the chips' own collectives bring these same tensors together.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal.env import Settings  # noqa: E402
from hwal.errors import EXIT_PREEMPTED  # noqa: E402
from hwal_torch.harness import Outcome, run_world  # noqa: E402
from hwal_torch.suite.base import largest_difference, losses_of  # noqa: E402
from hwal_torch.suite.jobs import Trial  # noqa: E402
from hwal_torch.suite.layouts import build_apart, train_normed, train_sometimes  # noqa: E402
from hwal_torch.suite.tasks import evaluate, train  # noqa: E402
from hwal_tpu.multi_process import MultiProcessTorchRuntime  # noqa: E402

from . import jobs  # noqa: E402
from .stand_in import Gathered, Sharded, StandIn  # noqa: E402

# The stand-in's collectives each end a graph, so that these compile some seventy in place of five.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SAME = 1e-5  # relative, of fp32 losses: other kernels add in another order


def run(size: int, task: Any, *args: Any, folder: Path, runtime: Any = StandIn, **settings: Any) -> list[Outcome]:
    """`size` ranks, each on a machine of its own as far as the plan knows: processes of one machine are refused there."""
    settings.setdefault("precision", "fp32")
    options: Any = {"run_dir": folder, "settings": Settings(**settings), "nodes": size, "limit": 400}
    if runtime is None:
        return run_world("cpu", 1, task, *args, **options)
    return run_world("tpu:cpu", size, task, *args, runtime=runtime, **options)


def results(size: int, task: Any, *args: Any, **options: Any) -> list[Any]:
    outcomes = run(size, task, *args, **options)
    for outcome in outcomes:
        assert outcome.error is None and outcome.exit_code is None, f"rank {outcome.rank}: {outcome.error or outcome}"
    return [outcome.result for outcome in outcomes]


CURVES = {
    "ragged ends, clipping": (Trial(rows=25, epochs=2), {}),
    "lengths, accumulation": (Trial(text=True, epochs=2, optimizer="momentum"), {"micro_batch": 3}),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_curve_of_one_process(tmp_path: Path, name: str) -> None:
    """Whole copies: losses as on the CPU, and in the end the same weights on all ranks."""
    trial, settings = CURVES[name]
    results(1, train, trial, folder=tmp_path / "cpu", runtime=None, **settings)
    ranks = results(2, train, trial, folder=tmp_path / "two", **settings)
    assert largest_difference(losses_of(tmp_path / "two"), losses_of(tmp_path / "cpu")) < SAME
    for rank in ranks:
        assert all(torch.equal(value, ranks[0]["weights"][key]) for key, value in rank["weights"].items())


SHARDED = {
    "recomputed blocks, a number of their own, ghosts": (
        Sharded,
        Trial(rows=25, blocks=3, epochs=1),
        {"grad_checkpoint": True},
    ),
    "grad-op, tied weights, accumulation": (Gathered, Trial(text=True, epochs=1, optimizer="momentum"), {"micro_batch": 2}),
}


@pytest.mark.parametrize("name", SHARDED)
def test_the_curve_of_one_process_sharded(tmp_path: Path, name: str) -> None:
    """FSDP v1 by torch_xla's class, as two ranks, and alone by its own collectives."""
    runtime, trial, settings = SHARDED[name]
    results(1, train, trial, folder=tmp_path / "cpu", runtime=None, **settings)
    for size in (1, 2):
        results(size, train, trial, folder=tmp_path / str(size), runtime=runtime, **settings)
        assert largest_difference(losses_of(tmp_path / str(size)), losses_of(tmp_path / "cpu")) < SAME, size


def test_sharded_in_bf16(tmp_path: Path) -> None:
    """Autocast over fp32 shards: near fp32's curve, and not it."""
    trial = Trial(blocks=2, epochs=1)
    results(1, train, trial, folder=tmp_path / "fp32", runtime=None)
    results(1, train, trial, folder=tmp_path / "bf16", runtime=Sharded, precision="bf16")
    assert 1e-6 < largest_difference(losses_of(tmp_path / "bf16"), losses_of(tmp_path / "fp32")) < 0.1


def test_a_rank_has_its_rows(tmp_path: Path) -> None:
    """Of parameters, and of the optimizer's state of them."""
    (alone,) = results(1, jobs.held, folder=tmp_path / "one", runtime=Sharded)
    ranks = results(2, jobs.held, folder=tmp_path / "two", runtime=Sharded)
    assert ranks == [{"names": alone["names"], "parameters": alone["parameters"] / 2, "state": alone["state"] / 2}] * 2


def test_a_loss_that_is_no_number_on_one_rank_ends_all(tmp_path: Path) -> None:
    """Whichever has the row of a parameter that is not finite, all name that parameter."""
    outcomes = run(2, train, Trial(blocks=2, epochs=1, nan_at=3, nan_on=1), folder=tmp_path, runtime=Sharded)
    for outcome in outcomes:
        told = outcome.error or ""
        assert "the loss of step 3 is nan" in told and "is the first that is not finite" in told, outcome
    assert not (tmp_path / "checkpoints").exists()


def test_an_optimizer_that_looks_across_rows_is_refused(tmp_path: Path) -> None:
    for outcome in run(2, train, Trial(blocks=2, optimizer="adafactor"), folder=tmp_path, runtime=Sharded):
        assert "Adafactor looks across the rows of a parameter" in (outcome.error or ""), outcome


def test_a_checkpoint_goes_on_in_every_world(tmp_path: Path) -> None:
    """Saved within an epoch, with its optimizer and schedule: by one process, in three ranks' shards, by two whole copies."""
    trial = Trial(rows=25, blocks=2, epochs=2)
    stages = [("cpu", 1, None, 2), ("sharded", 3, Sharded, 4), ("copies", 2, StandIn, 6), ("in the end", 1, None, None)]
    before, done = None, 0
    for name, size, runtime, save_at in stages:
        folder = tmp_path / name
        results(size, train, replace(trial, save_at=save_at), folder=folder, runtime=runtime, resume=before)
        assert largest_difference(losses_of(folder), losses_of(tmp_path / "cpu")[done:]) < SAME, name
        before, done = str(folder), save_at or 0


def test_what_one_rank_uses_alone_is_trained_on_all(tmp_path: Path) -> None:
    trial = Trial(batch=6, epochs=1)
    (alone,) = results(1, train_sometimes, trial, folder=tmp_path / "cpu", runtime=None)
    for weights in results(2, train_sometimes, trial, folder=tmp_path / "two"):
        for name, value in alone.items():
            assert torch.allclose(weights[name], value, atol=1e-5), name


def test_what_is_no_number_on_other_ranks_is_not_spread(tmp_path: Path) -> None:
    assert results(2, jobs.spread, folder=tmp_path) == [[5.0], [5.0]]


def test_ranks_begin_and_evaluate_with_one_model(tmp_path: Path) -> None:
    """Weights that each rank made by itself, and running statistics, are rank 0's."""
    ranks = results(2, build_apart, folder=tmp_path / "apart")
    for weights, _ in ranks:
        assert all(torch.equal(weights[name], value) for name, value in ranks[0][1].items())
    first, second = results(2, train_normed, folder=tmp_path / "normed")
    assert all(torch.equal(second[name], value) for name, value in first.items())


def test_evaluating_in_shards(tmp_path: Path) -> None:
    """Ranks gather parameters together in an evaluation too, whose batches end unequally."""
    (alone,) = results(1, evaluate, Trial(epochs=1), folder=tmp_path / "cpu", runtime=None, micro_batch=2)
    for rank in results(2, evaluate, Trial(epochs=1), folder=tmp_path / "two", runtime=Sharded, micro_batch=2):
        assert largest_difference(rank["losses"], alone["losses"]) < SAME


def test_a_signal_to_one_rank_ends_all_at_one_step(tmp_path: Path) -> None:
    outcomes = run(2, train, Trial(stop_at=3), folder=tmp_path, runtime=Sharded)
    assert [outcome.exit_code for outcome in outcomes] == [EXIT_PREEMPTED] * 2, outcomes
    word = json.loads((tmp_path / "preempted.json").read_text())
    assert word["step"] == len(losses_of(tmp_path)) in (3, 4)


def test_no_step_reads_from_the_device(tmp_path: Path) -> None:
    """Neither to sum up losses nor to ask whether to end; the last read of a pass is after it."""
    assert results(2, jobs.reads, Trial(epochs=1), folder=tmp_path) == [[], []]


def test_processes_that_pjrt_has_not_brought_together_are_refused(tmp_path: Path) -> None:
    outcomes = run(2, train, Trial(), folder=tmp_path, runtime=MultiProcessTorchRuntime)
    for outcome in outcomes:
        assert "2 ranks of one device each, and PJRT has 1 in this process and 1 in all" in (outcome.error or ""), outcome
