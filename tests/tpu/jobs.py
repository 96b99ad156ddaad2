"""What a process of tests/tpu does, beside the suite's own tasks."""

from __future__ import annotations

import sys
from collections import UserDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from hwal_torch.suite.jobs import Trial, loader_of, loss_of
from hwal_torch.suite.tasks import build


def shares(rt: Any) -> dict[str, float]:
    """Bytes on the first device: of parameters and of the optimizer's state, whose rows 4 devices share evenly."""
    from hwal_tpu import xla

    with rt.scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rt.prepare(model, optimizer)
    data = [torch.randn(16, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    for x in rt.feed(DataLoader(data, batch_size=8)):
        rt.backward(model(x).square().mean())
        rt.step(optimizer)
    state = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return {
        "parameters": sum(map(xla.share_of, model.parameters())),
        "all parameters": sum(parameter.numel() * 4 for parameter in model.parameters()),
        "state": sum(map(xla.share_of, state)),
    }


def tied(rt: Any) -> dict[str, bool]:
    model, optimizer, _ = build(rt, Trial(text=True))
    before = model.head.weight is model.embed.weight
    known = any(model.embed.weight is parameter for group in optimizer.param_groups for parameter in group["params"])
    for batch in rt.feed(loader_of(Trial(text=True))):
        rt.backward(loss_of(model, batch))
        rt.step(optimizer)
    return {"tied": before, "in the optimizer": known, "after training": model.head.weight is model.embed.weight}


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))  # type: ignore[no-any-return]


def lines(rt: Any, pad: Any, steps: int) -> dict[str, Any]:
    """Trains on lines of 1 to 120 tokens, each batch as long as its longest."""
    from hwal_tpu import xla

    def collate(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return pad_sequence(rows, batch_first=True), pad_sequence(rows, batch_first=True, padding_value=-100)

    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 121, (400,), generator=generator).tolist()
    rows = [torch.randint(0, 20, (length,), generator=generator) for length in lengths]
    with rt.scope():
        model = Reader()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rt.prepare(model, optimizer)
    graphs, read = xla.compiled(), []
    for _ in rt.epochs(steps=steps):
        for tokens, labels in rt.feed(DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate), pad=pad):
            before = xla.fetched()
            with rt.autocast():
                logits = model(tokens)
            total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            rt.backward((total, (labels != -100).sum()))
            rt.step(optimizer, clip=1.0)
            if xla.fetched() > before and rt.steps_done % 50:  # at every fiftieth step old losses are read, all at once
                read.append(rt.steps_done)
    return {"graphs": xla.compiled() - graphs, "read in steps": read}


def reads(rt: Any, trial: Trial) -> list[int]:
    """The steps in which the host read from the device, for another purpose than to stand in for its collectives."""
    from hwal_tpu import xla

    from .stand_in import Reads

    model, optimizer, scheduler = build(rt, trial)
    steps = []
    for _ in rt.epochs(trial.epochs):
        for batch in rt.feed(loader_of(trial)):
            before = xla.fetched() - Reads.count
            rt.backward(loss_of(model, batch))
            if rt.step(optimizer, clip=trial.clip):
                scheduler.step()
            if xla.fetched() - Reads.count > before:
                steps.append(rt.steps_done)
    return steps


def held(rt: Any) -> dict[str, Any]:
    """The names of a model's parameters, and how many numbers this rank has of them and of the optimizer's state."""
    with rt.scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rt.prepare(model, optimizer)
    data = [torch.randn(16, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    for x in rt.feed(DataLoader(data, batch_size=8)):
        rt.backward(model(x).square().mean())
        rt.step(optimizer)
    state = [value for values in optimizer.state.values() for value in values.values() if value.dim()]
    return {
        "names": sorted(dict(model.named_parameters())),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "state": sum(value.numel() for value in state),
    }


def logs(rt: Any) -> dict[str, Any]:
    model, optimizer, _ = build(rt, Trial())
    evaluated = 0
    for batch in rt.feed(loader_of(Trial())):
        loss = loss_of(model, batch)
        rt.backward(loss)
        if rt.step(optimizer):
            rt.log(twice=2 * loss.detach(), several=loss.detach().repeat(2))
    with torch.no_grad():
        for batch in rt.feed(loader_of(Trial(rows=20)), train=False):
            model(batch[1])
            evaluated += 1
    return {"mean": rt.mean(torch.tensor(1.0, device=rt.device), 4), "evaluated": evaluated}


def compiling(rt: Any) -> bool:
    """Whether the watchdog takes a thread in XLA's compiler for one that compiles."""
    import torch_xla

    from hwal.watch.spot import Library, Signs

    seen = []
    step_marker = torch_xla._XLAC._xla_step_marker

    def look(*args: Any, **options: Any) -> None:
        seen.append(Library().spot(sys._getframe(1), Signs(compilers=rt.compilers)).compiling)
        step_marker(*args, **options)

    torch_xla._XLAC._xla_step_marker = look
    rt.lay_out()
    torch_xla._XLAC._xla_step_marker = step_marker
    return seen == [True]


def wrapped(rt: Any) -> tuple[str, list[str]]:
    """The kind of a batch that is a mapping of another kind, as a tokenizer gives it, and where its tensors are."""

    def collate(rows: list[torch.Tensor]) -> UserDict[str, torch.Tensor]:
        return UserDict({"x": torch.stack(rows), "y": torch.ones(len(rows))})

    with rt.scope():
        model = nn.Linear(4, 1)
    rt.prepare(model)
    (batch,) = rt.feed(DataLoader([torch.ones(4)] * 8, batch_size=8, collate_fn=collate), train=False)
    model(batch["x"])
    return type(batch).__name__, [tensor.device.type for tensor in batch.values()]


def spread(rt: Any) -> list[float]:
    """What all ranks have of a number that is the rank's, and no number on the others than rank 0, once rank 0's is shared."""
    own = torch.tensor([5.0 if rt.rank == 0 else float("nan")], device=rt.device)
    rt.collectives.share(own)
    return own.tolist()  # type: ignore[no-any-return]
