"""history-without-detach

What: A loss that is kept from step to step without `detach`.

Why: Each keeps its graph, and the memory of its step.

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            history.append(loss)

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            history.append(loss.detach())

Fix safety: safe: the number is the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    steps = file.steps
    for node, function in file.step_nodes(ast.Call, ast.AugAssign):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and len(node.args) == 1
        ):
            value = node.args[0]
            if isinstance(value, ast.Name) and "loss" in value.id and steps.is_tensor(value, function):
                fix = Fix("safe", "the number is the same", (edits.replace(file.source, value, f"{value.id}.detach()"),))
                yield Finding(node, f"`{value.id}` is kept with its graph and the memory of its step", "loss.detach()", fix=fix)
        elif (
            isinstance(node, ast.AugAssign)
            and isinstance(node.value, ast.Name)
            and "loss" in node.value.id
            and isinstance(node.op, ast.Add)
        ):
            kept = isinstance(node.target, ast.Name) and not _differentiated(file, node.target.id)
            if kept and steps.is_tensor(node.value, function):
                fix = Fix(
                    "safe", "the number is the same", (edits.replace(file.source, node.value, f"{node.value.id}.detach()"),)
                )
                yield Finding(
                    node, f"`{node.value.id}` is added with its graph and the memory of its step", "loss.detach()", fix=fix
                )


def _differentiated(file: File, name: str) -> bool:
    """Whether a sum of losses is what `backward` is called on."""
    return any(name in ast.unparse(call.func) for call, _ in file.method_calls("backward"))


RULE = Rule("PTX611", "history-without-detach", "warning", _check, __doc__, scope="module", fix="safe")
