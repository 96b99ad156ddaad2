"""no-step-marker

What: A training loop on torch_xla without `torch_xla.sync()`, `xm.mark_step()`, `xm.optimizer_step(…, barrier=True)` or a
    device loader.

Why: Nothing runs the graph, which grows with each step until memory is full.

Bad:
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File

MARKERS = (
    "mark_step",
    "sync",
    "step",
    "MpDeviceLoader",
    "ParallelLoader",
    "per_device_loader",
    "optimizer_step",
    "compile",
    "step_closure",
)


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch_xla") or file.source.uses(
        "hwal", "accelerate", "transformers", "lightning", "pytorch_lightning"
    ):
        return
    for call, _ in file.source.calls:
        name = file.source.names.resolve(call.func) or ""
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if (name.startswith("torch_xla") and name.rpartition(".")[2] in MARKERS) or method in (
            "mark_step",
            "per_device_loader",
        ):
            return
    for loop, _ in file.steps.loops:
        yield Finding(
            loop,
            "a training loop that never runs its graph: it grows with each step",
            "torch_xla.sync() at the end of each step, or a MpDeviceLoader",
        )


RULE = Rule("PTX605", "no-step-marker", "error", _check, __doc__, scope="module")
