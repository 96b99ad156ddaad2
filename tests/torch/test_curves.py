"""P2 at its full length, with the schedules that scripts use, and what a run says when its curve is another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from hwal.env import Settings
from hwal_torch.harness import run_world
from hwal_torch.suite.base import FP32, SAME, largest_difference, losses_of
from hwal_torch.suite.jobs import Rows, Trial, loss_of, pad
from hwal_torch.suite.tasks import build, train
from hwal_torch.trouble import mixes_samples

slow = pytest.mark.slow


def results(size: int, task: Any, *args: Any, folder: Path, settings: Settings = FP32) -> list[Any]:
    outcomes = run_world("cpu", size, task, *args, run_dir=folder, settings=settings)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


@slow
@pytest.mark.parametrize(
    ("strategy", "grid"),
    [("ddp", [(1, 4), (2, 2), (3, 1), (4, 4)]), ("fsdp:full", [(3, 4), (4, 2)])],
    ids=["ddp", "fsdp:full"],
)
def test_two_hundred_steps(tmp_path: Path, strategy: str, grid: list[tuple[int, int]]) -> None:
    """Worlds 1 to 4, accumulation, ragged ends, lengths that vary: within 1e-6 over 200 steps (tests/bench/curve.py has the
    whole grid, the suite all of it over fewer steps)."""
    trial = Trial(rows=103, batch=48, text=True, optimizer="momentum", epochs=None, steps=200, clip=0.3)
    results(1, train, trial, folder=tmp_path / "one")
    losses = losses_of(tmp_path / "one")
    assert len(losses) == 200 and losses[-1] < losses[0]
    for size, forwards in grid:
        settings = replace(FP32, strategy=strategy, micro_batch=trial.batch // size // forwards)
        folder = tmp_path / f"{size}-{forwards}"
        results(size, train, trial, folder=folder, settings=settings)
        assert largest_difference(losses_of(folder), losses) <= SAME, f"world {size}, accumulation {forwards}"


def scheduled(rt: Any, kind: str) -> list[float]:
    """Trains under one kind of schedule; returns the learning rate of every step."""
    with rt.scope():
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler: Any = {
            "epochs": lambda: lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
            "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
            "one cycle": lambda: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=12),
        }[kind]()
    rt.prepare(model, optimizer, scheduler)
    train_rows, held_out = (DataLoader(Rows(rows), batch_size=8, collate_fn=pad) for rows in (26, 11))
    rates = []
    for _ in rt.epochs(3):
        for _, x, y in rt.feed(train_rows):
            rt.backward(functional.mse_loss(model(x), y))
            rate = optimizer.param_groups[0]["lr"]
            if rt.step(optimizer):
                rates.append(rate)
                if kind == "one cycle":
                    scheduler.step()
        if kind == "epochs":
            scheduler.step()
        if kind == "plateau":
            total, count = 0.0, 0
            with torch.no_grad():
                for _, x, y in rt.feed(held_out, train=False):
                    total, count = total + float(functional.mse_loss(model(x), y, reduction="sum")), count + len(x)
            scheduler.step(rt.mean(total, count))
    return rates


@slow
@pytest.mark.parametrize("kind", ["epochs", "plateau", "one cycle"])
def test_schedules(tmp_path: Path, kind: str) -> None:
    (rates,) = results(1, scheduled, kind, folder=tmp_path / "one")
    losses = losses_of(tmp_path / "one")
    assert len(set(rates)) > 1 and len(rates) == 12
    for strategy, micro in (("ddp", 2), ("fsdp:full", None)):
        folder = tmp_path / strategy
        settings = replace(FP32, strategy=strategy, micro_batch=micro)
        assert results(3, scheduled, kind, folder=folder, settings=settings) == [rates] * 3
        assert largest_difference(losses_of(folder), losses) <= SAME


class Many(Dataset[Any]):
    """Reads many rows at once, with noise."""

    def __init__(self) -> None:
        self.rows = Rows(26)

    def __len__(self) -> int:
        return 26

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = torch.randn(len(indices), 6)
        return [(i, self.rows.x[i] + noise[n], self.rows.y[i]) for n, i in enumerate(indices)]


class Halves:
    """A batch sampler of the script's own: two halves of each batch, drawn."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(4):
            yield torch.randperm(13)[:4].tolist() + (13 + torch.randperm(13)[:3]).tolist()


def reads(rt: Any, kind: str) -> list[list[int]]:
    """Trains on a loader of one kind; returns the ids that this rank saw at each step."""
    model, optimizer, _ = build(rt, Trial(optimizer="sgd", dropout=0.2))
    loader = {
        "many": lambda: DataLoader(Many(), batch_size=8, shuffle=True, collate_fn=pad),
        "many, workers": lambda: DataLoader(Many(), batch_size=8, shuffle=True, collate_fn=pad, num_workers=1),
        "batch sampler": lambda: DataLoader(Rows(26), batch_sampler=Halves(), collate_fn=pad),  # type: ignore[arg-type]
        "drop last": lambda: DataLoader(Rows(26), batch_size=8, shuffle=True, drop_last=True, collate_fn=pad),
    }[kind]()
    steps: list[list[int]] = []
    ids: list[int] = []
    for _ in rt.epochs(2):
        for batch in rt.feed(loader):
            ids += [] if rt.is_ghost else batch[0].tolist()
            rt.backward(loss_of(model, batch))
            if rt.step(optimizer):
                steps.append(ids)
                ids = []
    return steps


@slow
@pytest.mark.parametrize("kind", ["many", "many, workers", "batch sampler", "drop last"])
def test_other_ways_to_read(tmp_path: Path, kind: str) -> None:
    settings = replace(FP32, virtual_ranks=6)
    (one,) = results(1, reads, kind, folder=tmp_path / "one", settings=settings)
    assert {len(ids) for ids in one} == {"batch sampler": {7}, "drop last": {8}}.get(kind, {8, 2})
    assert one[: len(one) // 2] != one[len(one) // 2 :]
    for size in (2, 3):
        ranks = results(size, reads, kind, folder=tmp_path / str(size), settings=settings)
        assert [[i for rank in step for i in rank] for step in zip(*ranks, strict=True)] == one
        assert largest_difference(losses_of(tmp_path / str(size)), losses_of(tmp_path / "one")) <= SAME


def said(rt: Any, trial: Trial) -> list[str]:
    """What a run says to the person at the terminal."""
    lines: list[str] = []
    rt.reporter.say = lines.append
    train(rt, trial)
    return lines


@slow
def test_what_makes_another_curve_is_told(tmp_path: Path) -> None:
    trial = Trial(epochs=1, save_at=4)
    results(1, said, trial, folder=tmp_path / "one", settings=replace(FP32, virtual_ranks=2))
    resumed = replace(FP32, virtual_ranks=4, resume=str(tmp_path / "one"))
    (lines,) = results(1, said, replace(trial, batch=7, epochs=2), folder=tmp_path / "other", settings=resumed)
    assert any(line.endswith("saved with virtual ranks 2; goes on with virtual ranks 4") for line in lines), lines
    assert "the global batch is 7 now, 8 when the checkpoint was saved: the curve goes on as another" in lines
    (lines,) = results(1, said, replace(trial, epochs=2), folder=tmp_path / "same", settings=replace(resumed, virtual_ranks=2))
    assert not any("virtual ranks" in line or "global batch" in line for line in lines), lines
    (lines,) = results(1, said, replace(trial, epochs=2, rows=40), folder=tmp_path / "more", settings=resumed)
    assert "a pass over the data has 5 batches now, 4 when the checkpoint was saved" in lines, lines


@slow
def test_reading_a_stream_everywhere_is_told_once(tmp_path: Path) -> None:
    lines, _ = results(2, said, Trial(loader="stream", epochs=2), folder=tmp_path)
    told = "every rank reads the whole data set and keeps its slice: 2 times the reading (rt.feed)"
    assert lines.count(told) == 1


@slow
def test_deterministic_says_what_it_costs(tmp_path: Path) -> None:
    settings = replace(FP32, virtual_ranks=6, deterministic=True)
    lines, _ = results(2, said, Trial(epochs=1), folder=tmp_path, settings=settings)
    assert "deterministic: gradients of 3 part(s) are kept: +0.01 MiB a process" in lines


def test_layers_that_mix_samples_are_named() -> None:
    assert mixes_samples(nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.LayerNorm(2))) is None
    named = mixes_samples(nn.Sequential(nn.Linear(2, 2), *(nn.BatchNorm1d(2) for _ in range(4))))
    assert named is not None and named.startswith("1, 2, 3 …: batch norm sees one micro-batch of one rank")
    synced = mixes_samples(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(2))))
    assert synced is not None and synced.startswith("0: SyncBatchNorm sees one micro-batch of every rank")
