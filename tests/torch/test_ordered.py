"""--deterministic: equal to the bit, in the corners that the suite does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from hwal.env import Settings
from hwal.values import World
from hwal_torch.harness import Outcome, run_world
from hwal_torch.ordered import BUCKET, Ordered, buckets
from hwal_torch.suite.jobs import Rows, Trial, loader_of, pad
from hwal_torch.suite.layouts import train_sometimes
from hwal_torch.suite.tasks import train, train_two, weights_of
from hwal_torch.units import Unit

PARTS = 12
DETERMINISTIC = Settings(precision="fp32", virtual_ranks=PARTS, deterministic=True)


def world(size: int, task: Any, *args: Any, folder: Path, settings: Settings = DETERMINISTIC) -> list[Outcome]:
    return run_world("cpu", size, task, *args, run_dir=folder, settings=settings)


def ranks(size: int, task: Any, *args: Any, folder: Path, settings: Settings = DETERMINISTIC) -> list[Any]:
    outcomes = world(size, task, *args, folder=folder, settings=settings)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def normed(rt: Any, trial: Trial) -> dict[str, torch.Tensor]:
    """Batch norm behind dropout, on rows of one batch; its running statistics are part of what is returned."""
    with rt.scope():
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rt.prepare(model, optimizer)
    for _ in rt.epochs(2):
        for _, x, y in rt.feed(DataLoader(Rows(72), batch_size=24, shuffle=True, collate_fn=pad)):
            rt.backward(functional.mse_loss(model(x), y))
            rt.step(optimizer)
    return weights_of(model)


def two(rt: Any, trial: Trial) -> dict[str, torch.Tensor]:
    return train_two(rt, trial)["weights"]


def one(rt: Any, trial: Trial) -> dict[str, torch.Tensor]:
    return train(rt, trial)["weights"]


def wide(rt: Any, trial: Trial) -> dict[str, torch.Tensor]:
    """Several buckets, of two types of numbers, and parameters that are not contiguous."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 700)
            self.middle = nn.Linear(700, 700)
            self.middle.weight = nn.Parameter(self.middle.weight.detach().t())
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
            self.images = nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last)
            self.last = nn.Linear(700, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = self.images(x[:, :, None].expand(-1, -1, 6)[:, None]).mean((1, 2, 3))
            return self.last(torch.tanh(self.middle(torch.tanh(self.first(x))))) * self.scale.float() + seen[:, None]

    with rt.scope():
        model = Wide()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rt.prepare(model, optimizer)
    for _, x, y in rt.feed(loader_of(trial)):
        rt.backward(functional.mse_loss(model(x), y))
        rt.step(optimizer, clip=0.1)
    return weights_of(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "precision"),
    [(normed, "fp32"), (two, "fp32"), (train_sometimes, "fp32"), (wide, "fp32"), (one, "fp16"), (one, "bf16")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_equal_to_the_bit(tmp_path: Path, task: Callable[..., Any], precision: str) -> None:
    settings = replace(DETERMINISTIC, precision=precision)
    trial = Trial(epochs=2, dropout=0.2, noise=0.1)
    (alone,) = ranks(1, task, trial, folder=tmp_path / "1", settings=settings)
    for size in (2, 3, 4):
        for weights in ranks(size, task, trial, folder=tmp_path / str(size), settings=settings):
            assert same(weights, alone), f"world {size}"
        assert losses(tmp_path / str(size)) == losses(tmp_path / "1")


@pytest.mark.slow
def test_resumed_at_another_world(tmp_path: Path) -> None:
    trial = Trial(text=True, dropout=0.2, save_at=5)
    (alone,) = ranks(1, one, replace(trial, save_at=None), folder=tmp_path / "whole")
    ranks(3, one, trial, folder=tmp_path / "cut")
    settings = replace(DETERMINISTIC, resume=str(tmp_path / "cut"))
    for weights in ranks(2, one, trial, folder=tmp_path / "rest", settings=settings):
        assert same(weights, alone)
    assert losses(tmp_path / "rest") == losses(tmp_path / "whole")[5:]


def unlike(rt: Any) -> Any:
    """Built outside of scope(), under random state of each rank's own."""
    torch.manual_seed(rt.rank)
    model = nn.Linear(6, 1)
    rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return weights_of(model)


@pytest.mark.slow
def test_models_begin_equal(tmp_path: Path) -> None:
    first, second = ranks(2, unlike, folder=tmp_path)
    assert same(first, second)


def sparse(rt: Any) -> None:
    with rt.scope():
        model = nn.Embedding(30, 1, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for ids, _, y in rt.feed(loader_of(Trial())):
        rt.backward(functional.mse_loss(model(ids), y))
        rt.step(optimizer)


def stray(rt: Any) -> None:
    with rt.scope():
        model, other = nn.Linear(6, 1), nn.Linear(6, 1)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    rt.prepare(model)
    for _, x, y in rt.feed(loader_of(Trial())):
        rt.backward(functional.mse_loss(model(x) + other(x), y))
        rt.step(optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "told"), [(sparse, "a sparse gradient cannot be added in the order"), (stray, "was not brought together")]
)
def test_what_cannot_be_added_is_told(tmp_path: Path, task: Any, told: str) -> None:
    for outcome in world(2, task, folder=tmp_path):
        assert told in (outcome.error or ""), outcome


def test_what_it_costs_is_said() -> None:
    strategy = Ordered("single", World(), PARTS)
    strategy.install(nn.Linear(1024, 1024, bias=False))
    assert strategy.cost() == "deterministic: the sum of gradients is kept beside those of a part: +4.00 MiB a process"


@given(st.lists(st.tuples(st.integers(1, BUCKET // 2), st.sampled_from([torch.float32, torch.bfloat16])), max_size=20))
def test_buckets_hold_every_parameter_once(given: list[tuple[int, torch.dtype]]) -> None:
    parameters = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in given]
    found = list(buckets(parameters, range(len(parameters))))
    assert [number for bucket in found for number in bucket] == list(range(len(parameters)))
    for bucket in found:
        assert len({parameters[number].dtype for number in bucket}) == 1
        assert sum(parameters[number].nbytes for number in bucket[:-1]) < BUCKET


def test_the_sum_begins_with_what_there_is() -> None:
    """0.0 + -0.0 is 0.0: a part without gradient must not be added as zeros."""
    strategy = Ordered("single", World(), 3)
    model = nn.Linear(1, 1)
    strategy.install(model)
    for part, gradient in enumerate((None, torch.tensor([[-0.0]]), None)):
        unit = Unit(part, part + 1, 1.0, part, part == 0, part == 2, 3)
        strategy.sync(unit)
        model.weight.grad = gradient
        strategy.went_back(unit)
    strategy.reduced(strategy.flags())
    assert model.bias.grad is None
    assert model.weight.grad is not None and bool(torch.signbit(model.weight.grad))
