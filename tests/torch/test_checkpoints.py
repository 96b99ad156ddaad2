"""What a torch checkpoint holds and how it comes back, beyond the promises of the suite."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.data import DataLoader, TensorDataset

from hwal import shortage
from hwal.checkpoint import MANIFEST, verify
from hwal.errors import CheckpointError
from hwal_torch import saving, tree
from hwal_torch.shards import whole
from tests.torch.places import PLACES, error_of, results, run

slow = pytest.mark.slow


# trees


def test_a_tree_comes_back_and_its_tensors_are_asked_for_one_by_one() -> None:
    table: dict[str, torch.Tensor] = {}
    document = {
        "a": [1, 2.5, float("inf"), None, True, (torch.ones(2), "x")],
        "$b": {3: torch.zeros(()), "four": Counter({2: 3})},
    }
    plain = json.loads(json.dumps(tree.encode(document, table, "")))
    asked: list[str] = []
    again = tree.decode(plain, lambda key: asked.append(key) or table[key])
    assert str(again) == str(document) and asked == list(table)
    with pytest.raises(CheckpointError, match="a set cannot be saved"):
        tree.encode({"a": {1}}, {}, "")


# what is on disk


class Kinds(nn.Module):
    """State of every kind: numbers, other dtypes, another memory order, nothing at all."""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        order = torch.contiguous_format if sharded else torch.channels_last  # fully_shard refuses all but the usual one
        self.convolution = nn.Conv2d(3, 5, 3).to(memory_format=order)
        self.norm = nn.BatchNorm2d(5)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("low", torch.randn(7, 3).bfloat16())
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.empty(0, 4))
        self.register_buffer("turned", torch.arange(6).view(2, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(x)).mean() * self.gain + self.low.float().sum()


def save_kinds(rt: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    with rt.scope():
        model = Kinds(rt.strategy.sharded)
        optimizer = torch.optim.AdamW(model.parameters())
    rt.prepare(model, optimizer)
    for (x,) in rt.feed(DataLoader(TensorDataset(torch.randn(8, 3, 6, 6)), batch_size=8)):
        rt.backward(model(x))
        rt.step(optimizer)
    rt.save()
    state = {
        f"{number}/{name}": whole(value).clone()
        for number, values in enumerate(optimizer.state.values())
        for name, value in values.items()
    }
    return {name: whole(value.detach()).clone() for name, value in model.state_dict().items()}, state


def load_kinds(rt: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    with rt.scope():
        model = Kinds(rt.strategy.sharded)
        with torch.no_grad():
            for tensor in [*model.parameters(), model.norm.running_mean, model.turned, model.low]:
                tensor.zero_()
        optimizer = torch.optim.AdamW(model.parameters())
    rt.prepare(model, optimizer)
    state = {
        f"{number}/{name}": whole(value)
        for number, values in enumerate(optimizer.state[p] for p in model.parameters())
        for name, value in values.items()
    }
    return {name: whole(value.detach()) for name, value in model.state_dict().items()}, state


@slow
@pytest.mark.parametrize(("strategy", "size"), PLACES)
def test_state_of_every_kind(tmp_path: Path, strategy: str, size: int) -> None:
    weights, state = results(size, save_kinds, folder=tmp_path / "run", strategy=strategy)[0]
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000001" / "model.safetensors")
    assert saved.keys() == weights.keys()
    for name, value in saved.items():
        assert value.dtype == weights[name].dtype and torch.equal(value, weights[name]), name
    assert saved["gain"] != 0 and saved["norm.num_batches_tracked"] == 1
    for other, ranks in PLACES:
        resume = str(tmp_path / "run")
        for rank in results(ranks, load_kinds, folder=tmp_path / f"{other}", strategy=other, resume=resume):
            for ours, theirs in zip(rank, (weights, state), strict=True):
                assert ours.keys() == theirs.keys()
                assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def gpt2(layers: int = 2) -> Any:
    from tests.torch.models import transformer

    return transformer("gpt2", layers)


def save_transformer(rt: Any, limit: int) -> str:
    with rt.scope():
        model = gpt2()
    rt.prepare(model)
    return str(saving.save(rt, None, wait=True, limit=limit))


def load_transformer(rt: Any) -> dict[str, torch.Tensor]:
    with rt.scope():
        model = gpt2()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    rt.prepare(model)
    return {name: whole(value.detach()) for name, value in model.state_dict().items()}


@slow
@pytest.mark.parametrize(("strategy", "size"), [("single", 1), ("fsdp:full", 2)])
@pytest.mark.parametrize("limit", [10**9, 8_000])
def test_transformers_loads_it(tmp_path: Path, strategy: str, size: int, limit: int) -> None:
    """Whole or in files with an index, under the class that the script built."""
    from transformers import AutoModelForCausalLM

    folder = Path(results(size, save_transformer, limit, folder=tmp_path / "run", strategy=strategy)[0])
    assert (folder / "model.safetensors.index.json").exists() == (limit < 10**9)
    assert len(list(folder.glob("model*.safetensors"))) == (1 if limit == 10**9 else 5)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    loaded, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    whole_again = gpt2().state_dict()
    assert all(torch.equal(value, whole_again[name]) for name, value in loaded.state_dict().items())
    for rank in results(2, load_transformer, folder=tmp_path / "on", strategy="fsdp:full", resume=str(folder)):
        assert all(torch.equal(value, whole_again[name]) for name, value in rank.items())


def save_where(rt: Any, path: str) -> list[bool]:
    with rt.scope():
        model = nn.Linear(2, 2)
    rt.prepare(model)
    return [rt.save(path, wait=True) == Path(path), (Path(path) / MANIFEST).exists()]


@slow
@pytest.mark.parametrize(("strategy", "size"), PLACES)
def test_a_path_of_the_scripts_own(tmp_path: Path, strategy: str, size: int) -> None:
    """With wait it is there on every rank when the call returns; where other things are it is an error of all."""
    for rank in results(size, save_where, str(tmp_path / "here"), folder=tmp_path / "run", strategy=strategy):
        assert rank == [True, True]
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("x")
    error = error_of(size, save_where, str(tmp_path / "there"), folder=tmp_path / "run", strategy=strategy)
    assert error.startswith("OutputError") and "holds other things than a checkpoint" in error


def save_blind(rt: Any) -> None:
    """Rank 1 stands for a machine with another disk."""
    if rt.rank == 1:
        saving.InPlace.write_data = lambda *_: Path("/nowhere/at/all").read_text()  # type: ignore[assignment,method-assign]
    save_where(rt, str(rt.run_dir / "there"))


@slow
def test_a_rank_that_does_not_see_the_folder(tmp_path: Path) -> None:
    error = error_of(2, save_blind, folder=tmp_path, strategy="fsdp:full")
    assert error.startswith("OutputError: rank 1 does not see the folder") and "that all machines share" in error
    assert not (tmp_path / "there").exists()


def save_without_room(rt: Any) -> tuple[bool, list[str]]:
    shortage.available = lambda host: 100
    said: list[str] = []
    rt.reporter.say = said.append
    with rt.scope():
        model = nn.Linear(9, 9)
    rt.prepare(model)
    there = rt.save().exists()
    rt.save()
    return there, said


@slow
@pytest.mark.parametrize(("strategy", "size"), PLACES)
def test_without_room_for_a_copy_training_waits(tmp_path: Path, strategy: str, size: int) -> None:
    there, said = results(size, save_without_room, folder=tmp_path, strategy=strategy)[0]
    assert there and sum("would not leave room" in line for line in said) == 1


class Wrapped(torch.Tensor):
    """A tensor that consists of others, as those of 8-bit optimizers do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], *_: Any) -> Wrapped:
        return Wrapped(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg.inner if isinstance(arg, Wrapped) else arg for arg in args]
        return return_and_correct_aliasing(function, args, kwargs or {}, Wrapped(function(*plain, **(kwargs or {}))))


def test_a_tensor_of_tensors_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="a Wrapped cannot be saved") as caught:
        saving.piece_of(Wrapped(torch.ones(2)), "state/optimizers/0/a", copied=True)
    assert caught.value.where == "state/optimizers/0/a"


# signals


def save_and_get_sigterm(rt: Any) -> None:
    """The disk is held up until a signal has come."""
    gate, writing = threading.Event(), rt.checkpoints.writing

    @contextmanager
    def held_up(*args: Any) -> Iterator[Path]:
        gate.wait()
        with writing(*args) as folder:
            yield folder

    rt.checkpoints.writing = held_up
    with rt.scope():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for (x,) in rt.feed(DataLoader(TensorDataset(torch.randn(40, 3)), batch_size=4)):
        rt.backward(model(x).mean())
        rt.step(optimizer)
        if rt.steps_done == 2:
            rt.save()
        if rt.steps_done == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            gate.set()


@slow
@pytest.mark.parametrize(("strategy", "size"), PLACES)
def test_a_signal_while_a_checkpoint_is_written(tmp_path: Path, strategy: str, size: int) -> None:
    outcomes = run(size, save_and_get_sigterm, folder=tmp_path, strategy=strategy)
    assert [outcome.exit_code for outcome in outcomes] == [75] * size, outcomes
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert [verify(path).position.step for path in saved] in ([2, 4], [2, 5])
