"""plain-optimizer-step

What: `optimizer.step()` in a program of several torch_xla processes.

Why: Gradients are reduced over the processes by `xm.optimizer_step`; without it each process trains a model of its own,
    silently.

Bad:
    import torch_xla
    import torch_xla.core.xla_model as xm

    def train(index, model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            xm.mark_step()

    torch_xla.launch(train)

Good:
    import torch_xla
    import torch_xla.core.xla_model as xm

    def train(index, model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            xm.optimizer_step(optimizer)
            xm.mark_step()

    torch_xla.launch(train)

Fix safety: unsafe: gradients become means over all processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File

REDUCING = ("optimizer_step", "reduce_gradients", "all_reduce")


def _check(file: File) -> Iterator[Finding]:
    names = {name for name, _, _ in file.named_calls}
    several = any(name.startswith("torch_xla") and name.rpartition(".")[2] in ("spawn", "launch") for name in names)
    if (
        not several
        or any(name.rpartition(".")[2] in REDUCING for name in names)
        or any("DistributedDataParallel" in n for n in names)
    ):
        return
    alias = next((alias for alias in ("xm",) if file.source.names.imported(alias) == "torch_xla.core.xla_model"), None)
    for call, _ in file.method_calls("step"):
        owner = call.func.value  # type: ignore[attr-defined]
        if isinstance(owner, ast.Name) and "optim" in owner.id and file.torch_trains:
            fix = None
            if alias:
                fix = Fix(
                    "unsafe",
                    "gradients are reduced",
                    (edits.replace(file.source, call, f"{alias}.optimizer_step({owner.id})"),),
                )
            yield Finding(
                call,
                "optimizer.step() in several processes: gradients are not reduced, and each trains a model of its own",
                "xm.optimizer_step(optimizer)",
                fix=fix,
            )


RULE = Rule("PTX607", "plain-optimizer-step", "error", _check, __doc__, scope="module", fix="unsafe")
