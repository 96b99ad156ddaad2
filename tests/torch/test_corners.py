"""Corners of the torch runtime that no promise of the suite passes: each was wrong once."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from hwal.env import Settings
from hwal_torch.harness import Outcome, run_world

pytestmark = pytest.mark.slow


def world(size: int, task: Any, folder: Path, *args: Any, **settings: Any) -> list[Outcome]:
    return run_world("cpu", size, task, *args, run_dir=folder, settings=Settings(**settings))


def results(size: int, task: Any, folder: Path, *args: Any, **settings: Any) -> list[Any]:
    outcomes = world(size, task, folder, *args, **settings)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


def rows(batch: int = 4) -> DataLoader[Any]:
    x = torch.linspace(-1, 1, 48).view(16, 3)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch)


def waits(rt: Any) -> bool:
    if rt.rank == 0:
        time.sleep(7)
    rt.barrier()
    return True


def test_the_time_to_start_does_not_limit_what_comes_after(tmp_path: Path) -> None:
    assert results(2, waits, tmp_path, start_timeout=3) == [True, True]


def fp16(rt: Any, what: str) -> Any:
    """Four steps; returns which of them changed the weights."""
    with rt.scope():
        model, idle = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model, idle)]
    rt.prepare(model, idle, *optimizers)
    changed = []
    for step, (x, y) in enumerate(rt.feed(rows())):
        before = model.weight.detach().clone()
        loss = ((model(x) - y) ** 2).mean()
        if what == "skipped" and step == 1:
            continue
        rt.backward(loss * (float("nan") if what == "nan" and step == 1 else 1.0))
        for optimizer in optimizers if what == "idle" else optimizers[:1]:
            rt.step(optimizer)
        changed.append(not torch.equal(before, model.weight))
    return changed


def nan(rt: Any) -> Any:
    return fp16(rt, "nan")


def skipped(rt: Any) -> Any:
    return fp16(rt, "skipped")


def idle(rt: Any) -> Any:
    return fp16(rt, "idle")


def test_the_loss_scaler_bears_steps_without_gradients(tmp_path: Path) -> None:
    settings = {"precision": "fp16", "on_nan": "skip"}
    assert results(1, nan, tmp_path / "nan", **settings) == [[True, False, True, True]]
    assert results(1, skipped, tmp_path / "skipped", **settings) == [[True, True, True]]
    assert results(1, idle, tmp_path / "idle", **settings) == [[True] * 4]


def overflows(rt: Any) -> tuple[list[bool], list[str]]:
    """Which steps changed the weights, where the first scaled gradients are more than fp16 holds; and what was said."""
    said: list[str] = []
    rt.say = said.append
    with rt.scope():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    rt.prepare(model, optimizer)
    changed = []
    for _ in rt.epochs(4):
        for x, y in rt.feed(rows()):
            before = model.weight.detach().clone()
            with rt.autocast():
                loss = (model(100 * x).float() - y).pow(2).mean()
            rt.backward(loss)
            rt.step(optimizer, clip=1.0)
            changed.append(not torch.equal(before, model.weight))
    return changed, said


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_that_overflow_are_the_loss_scalers_business(tmp_path: Path, size: int) -> None:
    for changed, said in results(size, overflows, tmp_path, precision="fp16"):  # --on-nan stop, which is for losses
        assert changed[:3] == [False] * 3 and any(changed), changed
        assert not [line for line in said if "nan" in line or "update" in line], said


def bad_data(rt: Any, rank: int, first: int) -> tuple[list[int], list[str], list[float]]:
    """The steps that were done, what was said and the weights, where the rows of one rank are NaN from step `first` on."""
    said: list[str] = []
    rt.say = lambda text: said.append(text) if rt.is_main else None
    with rt.scope():
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    done = []
    for _ in rt.epochs(50):
        for x, y in rt.feed(rows()):
            bad = rt.rank == rank and (rt.steps_done == first or first < 0)
            rt.backward(((model(x * float("nan") if bad else x) - y) ** 2).mean())
            rt.step(optimizer)
            done.append(rt.steps_done)
            if rt.steps_done == 12 and first >= 0:
                break
        if rt.steps_done == 12 and first >= 0:
            break
    return done, said, model[1].weight.flatten().tolist()


def test_a_nan_on_one_rank_is_left_out_by_all(tmp_path: Path) -> None:
    one, two = results(2, bad_data, tmp_path, 1, 4, on_nan="skip")
    assert one[0] == two[0] == list(range(1, 13)) and one[2] == two[2] and all(map(math.isfinite, one[2]))
    (told,) = [line for line in one[1] if "the loss of step" in line]
    assert told == (
        "the loss of step 5 is nan on rank 1: no update (HWAL_ON_NAN=skip); "
        "the gradient of 0.weight is the first that is not finite"
    )
    assert "1 update was left out (HWAL_ON_NAN=skip), in step 5" in one[1] and not two[1]


def test_nothing_but_nans_ends_even_where_they_are_left_out(tmp_path: Path) -> None:
    for outcome in world(2, bad_data, tmp_path, 1, -1, on_nan="skip"):
        assert "the loss of step 100 is nan on rank 1, as were those of the 99 steps before" in (outcome.error or ""), outcome


def blows_up(rt: Any) -> None:
    """A finite loss with a gradient that is not, as of a square root at 0."""
    with rt.scope():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for step, (x, _) in enumerate(rt.feed(rows())):
        rt.backward((model(x) * (0.0 if step == 1 else 1.0)).abs().sqrt().mean())
        rt.step(optimizer)


def test_parameters_that_are_no_numbers_are_no_batch_to_leave_out(tmp_path: Path) -> None:
    (outcome,) = world(1, blows_up, tmp_path, on_nan="skip")
    assert "the loss of step 3 is nan, and so will be all that follow" in (outcome.error or ""), outcome
    assert "weight is not finite: an update before this one made it so" in (outcome.error or "")


def sums(rt: Any) -> bool:
    """Whether the very first step, over sums of a thousand tokens, changes the weights."""
    with rt.scope():
        model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    before = model[1].weight.detach().clone()
    for (tokens,) in rt.feed(DataLoader(TensorDataset(torch.arange(1024).remainder(50).view(16, 64)), batch_size=16)):
        with rt.autocast():
            logits = model(tokens)
        total = cross_entropy(logits.float().flatten(0, 1), ((tokens + 1) % 50).flatten(), reduction="sum")
        rt.backward((total, tokens.numel()))
        rt.step(optimizer)
    return not torch.equal(before, model[1].weight)


@pytest.mark.parametrize("size", [1, 2])
def test_the_first_fp16_step_does_not_overflow(tmp_path: Path, size: int) -> None:
    assert results(size, sums, tmp_path, precision="fp16", micro_batch=4) == [True] * size


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def augmented(rt: Any) -> list[float]:
    with rt.scope():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    seen: list[float] = []
    for x in rt.feed(DataLoader(Subset(Noise(), range(2, 16)), batch_size=7, num_workers=1)):
        seen += x.tolist()
        rt.backward(model(x[:, None]).mean())
        rt.step(optimizer)
    return seen


def test_samples_of_a_subset_have_seeds_of_their_own(tmp_path: Path) -> None:
    whole = results(1, augmented, tmp_path / "whole")
    assert [int(value) for value in whole[0]] == list(range(2, 16))
    assert results(1, augmented, tmp_path / "cut", micro_batch=2) == whole


def shares(rt: Any) -> None:
    with rt.scope():
        encoder, decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        decoder.weight = encoder.weight
    rt.prepare(encoder, decoder)


def test_models_that_share_a_parameter_are_refused_where_ranks_must_agree(tmp_path: Path) -> None:
    assert results(1, shares, tmp_path / "one") == [None]
    assert all("share a parameter" in (outcome.error or "") for outcome in world(2, shares, tmp_path / "two"))


def clips(rt: Any) -> None:
    with rt.scope():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for x, y in rt.feed(rows()):
        rt.backward(((model(x) - y) ** 2).mean())
        rt.step(optimizer, clip=0.0)


def test_clipping_to_nothing_is_a_mistake(tmp_path: Path) -> None:
    assert "clip=0.0" in (world(1, clips, tmp_path)[0].error or "")
