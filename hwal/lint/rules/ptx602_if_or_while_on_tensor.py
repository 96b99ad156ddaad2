"""if-or-while-on-tensor

What: `if` or `while` on a tensor's value in a step.

Why: Python waits for the value: the graph is cut, run, and each branch is another graph.

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            if loss > 10.0:
                optimizer.zero_grad()

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            optimizer.zero_grad()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    for node, function in file.step_nodes(ast.If, ast.While, ast.IfExp, ast.Assert, ast.Call):
        if isinstance(node, ast.Call):
            asked = list(node.args) if isinstance(node.func, ast.Name) and node.func.id in ("max", "min") else []
            what, help_ = "Python compares tensors", "torch.maximum, torch.minimum, or .clamp()"
        else:
            asked = list(_parts(node.test)) if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert) else []
            what, help_ = "a branch on a tensor's value", "torch.where, or a multiplication by the condition"
        if any(file.steps.is_tensor(part, function) for part in asked):
            yield Finding(node, f"{what}: the graph is cut, run and waited for", help_)


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """What is asked for its truth: each side of `and`, `or` and `not`."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand)
    else:
        yield test


RULE = Rule("PTX602", "if-or-while-on-tensor", "warning", _check, __doc__, scope="module")
