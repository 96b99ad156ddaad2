"""What ranks do to show how a strategy lays out a model: what each one holds, and models that strategies find hard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hwal.runtime import TorchRuntime
from hwal_torch.fsdp import units_of
from hwal_torch.shards import local
from hwal_torch.suite.jobs import Net, Trial, loader_of, loss_of
from hwal_torch.suite.tasks import build, weights_of


def hold(rt: TorchRuntime, trial: Trial) -> dict[str, Any]:
    """One global step; then the numbers that this rank holds of parameters and of optimizer state, and the units."""
    model, optimizer, _ = build(rt, trial)
    for batch in rt.feed(loader_of(trial)):
        rt.backward(loss_of(model, batch))
        if rt.step(optimizer):
            break
    state = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return {
        "all": sum(parameter.numel() for parameter in model.parameters()),
        "parameters": sum(local(parameter).numel() for parameter in model.parameters()),
        "state": sum(local(value).numel() for value in state),
        "units": len(units_of(model)),
        "tied": model.head.weight is model.embed.weight,  # type: ignore[union-attr]
        "class": type(model).__name__,
    }


class Sometimes(nn.Module):
    """A layer that works on rows with a small id only, and is not even called in a forward without any."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(False, 0.0, blocks=2)
        self.rare = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.never = nn.Linear(6, 6)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rare = (ids < 4)[:, None]
        if rare.any():
            for layer in self.rare:
                x = torch.where(rare, layer(x), x)
        return self.net(x)  # type: ignore[no-any-return]


def train_sometimes(rt: TorchRuntime, trial: Trial) -> dict[str, torch.Tensor]:
    """A model of which a rank uses parts in some steps only, under weight decay; returns its weights."""
    with rt.scope():
        model = Sometimes()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.3)
    rt.prepare(model, optimizer)
    for _ in rt.epochs(trial.epochs):
        for ids, x, y in rt.feed(loader_of(trial)):
            rt.backward(functional.mse_loss(model(ids, x), y))
            rt.step(optimizer, clip=1.0)
    return weights_of(model)


def train_normed(rt: TorchRuntime) -> dict[str, torch.Tensor]:
    """A model with batch norm; returns this rank's own running statistics and what it answers in evaluation."""
    with rt.scope():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rt.prepare(model, optimizer)
    loader = loader_of(Trial(rows=24))  # batch norm refuses a lone row
    for _, x, y in rt.feed(loader):
        rt.backward(functional.mse_loss(model(x), y))
        rt.step(optimizer)
    model.eval()
    rows = torch.ones(2, 6, device=rt.device)
    with torch.no_grad():
        return {"answer": model(rows).cpu(), **weights_of(model)}


def overflow(rt: TorchRuntime) -> list[float]:
    """fp16, and a gradient that is infinite in one entry of one rank's shard: returns the weights before and after."""
    trial = Trial(blocks=2)
    model, optimizer, _ = build(rt, trial)
    before = weights_of(model)
    for batch in rt.feed(loader_of(trial)):
        with rt.autocast():
            loss = loss_of(model, batch)
        rt.backward(loss)
        if rt.steps_done == 0 and rt.rank == rt.world_size - 1:
            for parameter in model.parameters():
                if parameter.grad is not None and local(parameter.grad).numel():
                    local(parameter.grad).view(-1)[0] = float("inf")
                    break
        if rt.step(optimizer, clip=1.0):
            break
    after = weights_of(model)
    return [float((after[name] - value).abs().max()) for name, value in before.items()]


def build_apart(rt: TorchRuntime) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A model built outside of scope, from another seed on each rank: its weights when prepared, and as this rank built it."""
    torch.manual_seed(rt.rank)
    model = Net(True, 0.0, blocks=2)
    built = {name: value.clone() for name, value in model.state_dict().items()}
    rt.prepare(model)
    return weights_of(model), built


class Either(nn.Module):
    """A model of two parts, of which a forward uses one."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16, sparse=sparse)
        self.heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(2))

    def forward(self, tokens: torch.Tensor, which: int) -> torch.Tensor:
        return self.heads[which](self.embed(tokens)).square().mean()  # type: ignore[no-any-return]


def beyond(rt: TorchRuntime, kind: str) -> None:
    """One thing that a strategy cannot do."""
    with rt.scope():
        model = Either(sparse=kind == "sparse")
        if kind == "two dtypes":
            model.heads.to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for _, tokens in rt.feed(loader_of(Trial(text=True))):
        rt.backward(model(tokens, 0) + model(tokens, 1))
        rt.step(optimizer)


def convolve(rt: TorchRuntime) -> dict[str, torch.Tensor]:
    """A convolution whose weights lie in channels_last order; returns the trained weights."""
    with rt.scope():
        model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 1)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rt.prepare(model, optimizer)
    for _, x, y in rt.feed(loader_of(Trial())):
        rt.backward(functional.mse_loss(model(x.repeat(1, 2).view(-1, 3, 2, 2)), y))
        rt.step(optimizer)
    return weights_of(model)
