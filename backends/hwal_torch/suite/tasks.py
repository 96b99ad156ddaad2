"""What ranks do in the suite: train, evaluate, or make a mistake, and return what happened, step by step."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from hwal.runtime import TorchRuntime
from hwal_torch.seeding import mix
from hwal_torch.shards import whole
from hwal_torch.suite.factored import Factored
from hwal_torch.suite.jobs import Net, Rows, Text, Trial, loader_of, loss_of, pad

OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
    "factored": Factored,
}


def build(rt: TorchRuntime, trial: Trial) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Model, optimizer and scheduler of a trial, prepared."""
    with rt.scope():
        model = Net(trial.text, trial.dropout, blocks=trial.blocks)
        optimizer = OPTIMIZERS[trial.optimizer](model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
    given = (model, optimizer, scheduler)
    assert rt.prepare(*given) == given, "prepare returns what it was given"
    return given


def build_two(rt: TorchRuntime, trial: Trial) -> tuple[nn.Module, tuple[torch.optim.Optimizer, torch.optim.Optimizer]]:
    """A model whose inner part has an optimizer of its own, prepared."""
    with rt.scope():
        model = Net(trial.text, trial.dropout, idle=True)
        inner = {id(p) for p in model.inner.parameters()}
        outer = torch.optim.SGD([p for p in model.parameters() if id(p) not in inner], lr=0.05)
        optimizers = (torch.optim.AdamW(model.inner.parameters(), lr=0.01), outer)
    rt.prepare(*optimizers, model)
    return model, optimizers


def train_two(rt: TorchRuntime, trial: Trial, every: int = 1) -> dict[str, Any]:
    """Two optimizers, of which one steps in `every` so many global batches only, a parameter without gradient, and an epoch
    that leaves its loop in the midst of a global batch."""
    model, optimizers = build_two(rt, trial)
    loader = loader_of(trial)
    for batch in rt.feed(loader):
        rt.backward(loss_of(model, batch))
        break
    steps = 0
    for _ in rt.epochs(trial.epochs):
        for batch in rt.feed(loader):
            rt.backward(loss_of(model, batch))
            if rt.step(optimizers[1], clip=trial.clip):
                steps += 1
                if steps % every == 0:
                    assert rt.step(optimizers[0], clip=trial.clip)
    return {"weights": weights_of(model), "steps": steps, "signature": str(signature(model.forward))}


def train(rt: TorchRuntime, trial: Trial) -> dict[str, Any]:
    """Trains; returns for every global step the rate and the ids this rank saw, and where it ended."""
    model, optimizer, scheduler = build(rt, trial)
    loader = loader_of(trial)
    steps: list[dict[str, Any]] = []
    ids: list[int] = []
    for _ in rt.epochs(trial.epochs, steps=trial.steps):
        for batch in (batch for _ in range(trial.feeds) for batch in rt.feed(loader)):
            ids += [] if rt.is_ghost else batch[0].tolist()
            with rt.autocast():
                loss = loss_of(model, batch)
                if rt.steps_done + 1 == trial.nan_at and trial.nan_on in (None, rt.rank):
                    loss = loss * float("nan")
            rt.backward(loss)
            rate = optimizer.param_groups[0]["lr"]
            if rt.step(optimizer, clip=trial.clip):
                scheduler.step()
                steps.append({"lr": rate, "ids": ids})
                ids = []
                if rt.steps_done == trial.save_at:
                    rt.save()
                if rt.steps_done == trial.stop_at and rt.rank == rt.world_size - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
    return {"steps": steps, "weights": weights_of(model), "position": rt.progress.position().to_dict()}


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model in full, whatever each rank holds of it."""
    return {name: whole(value.detach()).float().cpu() for name, value in model.state_dict().items()}


def train_by_hand(trial: Trial, seed: int, order: list[list[int]]) -> list[float]:
    """The loop that a user would write without hwal, in fp32 on one CPU, over global batches of these ids."""
    torch.manual_seed(mix(seed, 0))
    model = Net(trial.text, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    dataset: Any = Text(trial.rows) if trial.text else Rows(trial.rows)
    losses = []
    for step, ids in enumerate(order):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + 0.1 * step)
        loss = loss_of(model, pad([dataset[i] for i in ids]))
        mean = loss[0] / loss[1] if isinstance(loss, tuple) else loss
        mean.backward()
        if trial.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), trial.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(mean.detach()))
    return losses


def look(rt: TorchRuntime) -> dict[str, Any]:
    """What a rank sees of itself; its forward's precision; what a deep copy of a prepared model computes; tied weights."""
    model, _, _ = build(rt, Trial(text=True))
    tokens = torch.arange(1, 5, device=rt.device).reshape(1, 4)
    with rt.autocast():
        dtype = str((torch.ones(4, 4, device=rt.device) @ torch.ones(4, 4, device=rt.device)).dtype)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        own, copied = float(model(tokens).abs().sum()), float(twin(tokens).abs().sum())
    memory = rt.memory()
    return {
        "rank": rt.rank,
        "world_size": rt.world_size,
        "sum_of_ranks": rt.mean(rt.rank) * rt.world_size,
        "dtype": dtype,
        "weights": weights_of(model),
        "tied": model.head.weight is model.embed.weight,  # type: ignore[union-attr]
        "own": own,
        "copied": copied,
        "memory": (memory.used, memory.peak, memory.total, memory.source),
    }


def alone(rt: TorchRuntime, kind: str) -> dict[str, torch.Tensor]:
    """One way in which ranks could train models of their own without a word; returns the weights."""
    trial = Trial(epochs=1, optimizer="sgd")
    if kind == "never prepared":
        with rt.scope():
            model: nn.Module = Net(False, 0.0)
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    elif kind == "unfrozen later":
        with rt.scope():
            model = Net(False, 0.0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        model.head.requires_grad_(False)
        rt.prepare(model, optimizer)
        model.head.requires_grad_(True)
    else:
        model, optimizer, _ = build(rt, trial)
    loader = loader_of(trial)
    if kind == "evaluation left open":
        held = iter(rt.feed(loader, train=False))
        next(held)
    for batch in rt.feed(loader):
        if kind == "called in parts":
            head: Any = model.head
            output = head(model.inner(model.embed(batch[1])))  # type: ignore[operator]
            rt.backward(functional.mse_loss(output, batch[2]))
        else:
            rt.backward(loss_of(model, batch))
        rt.step(optimizer)
    return weights_of(model)


def misuse(rt: TorchRuntime, kind: str) -> None:
    """One mistake that a script can make; it must end in a ScriptError."""
    trial = Trial()
    if kind == "prepares a loader":
        rt.prepare(loader_of(trial))
    if kind == "optimizer of another model":
        rt.prepare(Net(False, 0.0), torch.optim.SGD(Net(False, 0.0).parameters(), lr=0.1))
    model, optimizer, _ = build(rt, trial)
    if kind == "prepares twice":
        rt.prepare(model)
    if kind == "resumes within a pass with another batch":
        rt.progress.restore(replace(rt.progress.position(), steps_in_feed=2, samples_in_feed=32))
        next(iter(rt.feed(loader_of(trial))))
    if kind == "steps outside of a feed":
        rt.step(optimizer)
    if kind == "goes back outside of a feed":
        rt.backward(torch.ones((), requires_grad=True))
    if kind == "no end of epochs":
        next(iter(rt.epochs()))
    if kind == "feeds a list":
        next(iter(rt.feed([1, 2, 3])))
    if kind == "splits by itself":
        sampler: Any = DistributedSampler(Rows(8), num_replicas=2, rank=0)
        next(iter(rt.feed(DataLoader(Rows(8), batch_size=4, sampler=sampler))))
    for batch in rt.feed(loader_of(trial)):
        loss = loss_of(model, batch)
        if kind != "steps without a backward":
            rt.backward(loss)
        if kind == "goes back twice":
            rt.backward(loss_of(model, batch))
        if kind == "steps two at once":
            rt.step([optimizer, optimizer])
        if kind == "steps with another":
            rt.step(optimizer, optimizer)  # type: ignore[arg-type]
        if kind != "never steps":
            rt.step(optimizer)


def evaluate(rt: TorchRuntime, trial: Trial) -> dict[str, Any]:
    """Evaluates in the midst of a training feed; returns the ids this rank saw each time, the mean of all ids and the loss."""
    model, optimizer, _ = build(rt, trial)
    loader = loader_of(trial)
    seen: list[list[int]] = []
    means, losses = [], []
    for batch in rt.feed(loader):
        rt.backward(loss_of(model, batch))
        if rt.step(optimizer):
            ids, total = [], 0.0
            for other in rt.feed(loader, train=False):
                ids += other[0].tolist()
                with torch.no_grad():
                    total += float(loss_of(model, other)) * len(other[0])
            seen.append(ids)
            means.append(rt.mean(sum(ids), len(ids)))
            losses.append(rt.mean(total, len(ids)))
    return {"ids": seen, "means": means, "losses": losses, "steps": rt.steps_done}
