"""--grad-checkpoint: the same curve, with less kept for the backward pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from hwal_torch.blocks import find_blocks
from hwal_torch.no_cache import train_without_cache
from hwal_torch.recompute import recompute_blocks
from tests.torch.models import ResNet, Vision, perceptron, transformer

Loss = Callable[[nn.Module], torch.Tensor]


def language(model: Any) -> torch.Tensor:
    x = torch.arange(32).view(4, 8) % 32
    return model(input_ids=x, labels=x).loss


def picture(model: Any) -> torch.Tensor:
    return model(pixel_values=torch.randn(4, 3, 8, 8)).logits.square().mean()


def sound(model: Any) -> torch.Tensor:
    x = torch.arange(32).view(4, 8) % 32
    return model(input_features=torch.randn(4, 4, 16), labels=x).loss


def patches(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 5, 12)).square().mean()


def images(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 3, 12, 12)).square().mean()


def sequences(model: nn.Module) -> torch.Tensor:
    x = torch.randn(4, 6, 16)
    return model(x, x.flip(1)).square().mean()


def curve(model: nn.Module, loss: Loss, steps: int = 4) -> tuple[list[float], torch.Tensor]:
    """Losses of a few steps, and the weights after them; what the forward draws is a function of the step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        value = loss(model)
        losses.append(value.item())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def kept(model: nn.Module, loss: Loss) -> int:
    """Bytes that a forward keeps for its backward, parameters left out."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(model)  # what it keeps must live, or addresses would come twice
    del value
    return sum(storages.values())


MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "gpt2": (lambda: transformer("gpt2", 4), language),
    "llama": (lambda: transformer("llama", 4, attention_dropout=0.1), language),
    "bert": (lambda: transformer("bert", 4), language),
    "t5": (lambda: transformer("t5", 4), language),
    "opt": (lambda: transformer("opt", 4), language),
    "vit": (lambda: transformer("vit", 4, hidden_dropout_prob=0.1), picture),
    "whisper": (lambda: transformer("whisper", 4, dropout=0.1), sound),
    "hand-written": (lambda: Vision(4), patches),
    "resnet": (ResNet, images),
    "nn.Transformer": (lambda: nn.Transformer(16, 2, 4, 4, 32, batch_first=True), sequences),
}


def twins(name: str) -> tuple[nn.Module, nn.Module, Loss, str]:
    """A model, its copy under --grad-checkpoint, their loss, and what was said.

    Neither keeps a cache: with one, transformers' attention rounds otherwise.
    """
    build, loss = MODELS[name]
    torch.manual_seed(0)
    plain = build().train()
    train_without_cache(plain)
    other = deepcopy(plain)
    return plain, other, loss, recompute_blocks(other, find_blocks(other))


@pytest.mark.parametrize("name", MODELS)
def test_the_curve_is_bitwise_the_same_dropout_included(name: str) -> None:
    plain, other, loss, _ = twins(name)
    losses, weights = curve(plain, loss)
    others, other_weights = curve(other, loss)
    assert others == losses
    assert torch.equal(other_weights, weights)


@pytest.mark.parametrize("name", MODELS)
def test_less_is_kept(name: str) -> None:
    plain, other, loss, _ = twins(name)
    assert kept(other, loss) < 0.6 * kept(plain, loss)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpt2", "recomputed in the backward pass: the layers of GPT2LMHeadModel, as transformers does it"),
        ("hand-written", "recomputed in the backward pass: 4 × Block"),
    ],
)
def test_it_is_told(name: str, text: str) -> None:
    assert twins(name)[3] == text


def test_a_model_without_blocks_stays_as_it_is_and_that_is_told() -> None:
    model = perceptron(2, 3, 4)
    assert recompute_blocks(model, find_blocks(model)) == (
        "--grad-checkpoint changes nothing: no blocks: no class repeats, no part has 1,000,000 parameters, "
        "and all of a model at once needs what it would save"
    )


def test_a_transformers_model_inside_another_and_blocks_beside_it() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language, self.vision = transformer("gpt2"), Vision()
            self._no_split_modules = ["Block"]

    model = Both()
    said = recompute_blocks(model, find_blocks(model))
    assert said == "recomputed in the backward pass: the layers of GPT2LMHeadModel, as transformers does it; 3 × Block"


@pytest.mark.parametrize("name", ["gpt2", "hand-written"])
def test_names_copies_and_pickles_stay(name: str) -> None:
    plain, other, loss, _ = twins(name)
    assert list(other.state_dict()) == list(plain.state_dict())
    for again in (deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert curve(again, loss)[0] == curve(deepcopy(plain), loss)[0]


def test_no_warnings_and_generation_keeps_its_cache(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    model = transformer("gpt2", 4)
    recompute_blocks(model, find_blocks(model))
    before = capfd.readouterr().err
    curve(model, language)
    assert "use_cache" not in before + capfd.readouterr().err
    assert not [w for w in recwarn if "cache" in str(w.message) or "checkpoint" in str(w.message)]
    model.eval()
    with torch.no_grad():
        assert model(input_ids=torch.ones(1, 4, dtype=torch.long)).past_key_values is not None
    assert model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=3, do_sample=False).shape == (1, 7)
    assert model.config.use_cache is True


def test_only_a_forward_that_trains_runs_twice() -> None:
    model = Vision(2)
    recompute_blocks(model, find_blocks(model))
    calls: list[int] = []
    model.blocks[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    patches(model).backward()
    assert len(calls) == 2
    with torch.no_grad():
        patches(model)
    assert len(calls) == 3
    patches(model.eval()).backward()
    assert len(calls) == 4
