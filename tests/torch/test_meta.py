"""Models built empty under --resume of a large checkpoint, and filled by prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hwal_torch import runtime
from hwal_torch.meta import Empties, allocate
from hwal_torch.shards import whole
from tests.torch.places import PLACES, results, run

pytestmark = pytest.mark.slow


class Marked(nn.Parameter):
    """A parameter of a class of the user's own."""


class Odd(nn.Module):
    """Tied weights, a recurrent layer, a number, and tensors that its state leaves out, drawn after its weights were."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.gain = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.randn(11))
        self.again = nn.Linear(11, 11)
        self.again.bias = self.shift
        self.marked = Marked(torch.randn(11))
        self.marked.decay = False
        self.register_buffer("noise", torch.randn(11), persistent=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("count", torch.tensor(5))
        self.scale = torch.rand(11)
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gain * self.head(self.rnn(self.embed(x))[0])
        self.cache = y
        return self.again(y + self.noise * self.scale) + self.marked


def rows() -> DataLoader[Any]:
    return DataLoader(TensorDataset((torch.arange(96) * 7 % 11).view(16, 6)), batch_size=4)


def build(rt: Any, meta: bool = True) -> tuple[Odd, torch.optim.Optimizer, list[bool]]:
    with rt.scope(meta=meta):
        model = Odd()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        empty = [parameter.is_meta for parameter in model.parameters()]
        assert not any(buffer.is_meta for buffer in model.buffers()) and not model.scale.is_meta
    rt.prepare(model, optimizer)
    return model, optimizer, empty


def two_steps(rt: Any, large: int, meta: bool = True, save: bool = False) -> dict[str, Any]:
    runtime.LARGE = large
    model, optimizer, empty = build(rt, meta)
    drawn = torch.rand(3)
    begun = {name: whole(value.detach()).clone() for name, value in model.state_dict().items()}
    held = {"noise": model.noise.clone(), "scale": model.scale.clone()}
    losses = []
    for (x,) in rt.feed(rows()):
        rt.backward(nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()))
        rt.step(optimizer)
        losses.append(rt.gradients.loss)
        if save and rt.steps_done == 2:
            model.scale *= 2
            model.seen += rt.steps_done
            rt.save()
    return {
        "empty": empty,
        "tied": model.head.weight is model.embed.weight and model.again.bias is model.shift,
        "kind": (type(model.marked).__name__, getattr(model.marked, "decay", None)),
        "drawn": drawn,
        "begun": begun,
        "held": held,
        "losses": [float(loss) for loss in losses],
    }


@pytest.mark.parametrize(("strategy", "size"), [*PLACES, ("fsdp:full+offload", 2)])
def test_filled_as_if_it_had_been_built_whole(tmp_path: Path, strategy: str, size: int) -> None:
    first = results(1, two_steps, 0, True, True, folder=tmp_path / "run")[0]
    assert not any(first["empty"]), "nothing is empty without --resume"
    resume = {"resume": str(tmp_path / "run"), "strategy": strategy}
    real = results(size, two_steps, 1 << 40, folder=tmp_path / "real", **resume)
    asked = results(size, two_steps, 0, False, folder=tmp_path / "asked", **resume)
    filled = results(size, two_steps, 0, folder=tmp_path / "filled", **resume)
    for one, other, rank in zip(real, asked, filled, strict=True):
        assert not any(one["empty"]) and not any(other["empty"])
        assert sum(rank["empty"]) == len(rank["empty"]) - 1, "all but the number"
        assert rank["tied"] and rank["losses"] == one["losses"] == other["losses"]
        assert rank["losses"] == pytest.approx(first["losses"][2:], rel=1e-6)
        for ours in (one, other, rank):
            assert all(torch.equal(value, real[0]["begun"][name]) for name, value in ours["begun"].items())
            assert torch.equal(ours["held"]["noise"], first["held"]["noise"])
            assert torch.equal(ours["held"]["scale"], first["held"]["scale"] * 2)
            assert torch.equal(ours["drawn"], first["drawn"]), "what a script draws after the scope does not depend on it"
        if not strategy.startswith("fsdp"):
            assert rank["kind"] == ("Marked", False)
        assert rank["begun"]["seen"].tolist() == [2, 2, 2] and rank["begun"]["count"] == 5


class Reads(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if how == "item":
            self.size = self.layer.weight.abs().max().item()
        if how == "branch" and (self.layer.weight > 0).any():
            self.size = 1.0
        if how == "numpy":
            self.size = self.layer.weight.detach().numpy().max()


def reads(rt: Any, how: str, meta: bool) -> bool:
    runtime.LARGE = 0
    with rt.scope(meta=meta):
        model = Reads(how)
    rt.prepare(model)
    return True


def saves(rt: Any) -> None:
    with rt.scope():
        model = Reads("")
    rt.prepare(model)
    rt.save()


@pytest.mark.parametrize("how", ["item", "branch", "numpy"])
def test_a_constructor_that_reads_weights_is_told_the_remedy(tmp_path: Path, how: str) -> None:
    results(1, saves, folder=tmp_path / "run")
    resume = str(tmp_path / "run")
    (outcome,) = run(1, reads, how, True, folder=tmp_path / "a", resume=resume)
    assert (outcome.error or "").startswith("ScriptError: a model reads its weights while it is built")
    assert "rt.scope(meta=False)" in (outcome.error or "")
    assert results(1, reads, how, False, folder=tmp_path / "b", resume=resume) == [True]


def forgets(rt: Any, thrown_away: bool) -> bool:
    runtime.LARGE = 0
    with rt.scope():
        model, teacher = Reads(""), Reads("")
        teacher.itself = [teacher]  # only the garbage collector finds it
    if thrown_away:
        del teacher
    rt.prepare(model)
    return True


def test_a_model_that_stays_empty_is_told(tmp_path: Path) -> None:
    results(1, saves, folder=tmp_path / "run")
    (outcome,) = run(1, forgets, False, folder=tmp_path / "a", resume=str(tmp_path / "run"))
    assert "a Linear was built in rt.scope() and not prepared: its weight is empty" in (outcome.error or "")
    assert "rt.scope(meta=False)" in (outcome.error or "")
    assert results(1, forgets, True, folder=tmp_path / "b", resume=str(tmp_path / "run")) == [True]


def pretrained(rt: Any, folder: str, save: bool) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    runtime.LARGE = 0
    with rt.scope():
        model = AutoModelForCausalLM.from_pretrained(folder)
        student = type(model)(model.config)  # the same, built by hand
    rt.prepare(model, student)
    if save:
        with torch.no_grad():
            for parameter in (*model.parameters(), *student.parameters()):
                parameter.add_(1)
        rt.save()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert student.lm_head.weight is student.transformer.wte.weight
    both = {**model.state_dict(), **{f"student.{name}": value for name, value in student.state_dict().items()}}
    return {name: whole(value.detach()) for name, value in both.items()}


@pytest.mark.parametrize(("strategy", "size"), PLACES)
def test_transformers_in_the_scope(tmp_path: Path, strategy: str, size: int) -> None:
    from tests.torch.models import transformer  # seconds of importing, which no other rank here needs

    transformer("gpt2").save_pretrained(tmp_path / "model")
    folder = str(tmp_path / "model")
    first = results(1, pretrained, folder, True, folder=tmp_path / "run")[0]
    for rank in results(
        size, pretrained, folder, False, folder=tmp_path / "on", resume=str(tmp_path / "run"), strategy=strategy
    ):
        assert rank.keys() == first.keys()
        assert all(torch.equal(value, first[name]) for name, value in rank.items())


def test_allocate_leaves_real_ones_alone() -> None:
    with Empties().building():
        empty = nn.Linear(3, 3)
    real = nn.Linear(3, 3)
    model = nn.Sequential(empty, real)
    weight = real.weight
    allocate(model, torch.device("cpu"))
    assert not empty.weight.is_meta and real.weight is weight and empty.weight.requires_grad
