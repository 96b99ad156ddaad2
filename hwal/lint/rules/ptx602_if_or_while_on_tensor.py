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
    for node, function in file.step_nodes(ast.If, ast.While, ast.IfExp):
        if isinstance(node, ast.If | ast.While | ast.IfExp) and file.steps.is_tensor(node.test, function):
            yield Finding(
                node,
                "a branch on a tensor's value: the graph is cut, run and waited for",
                "torch.where, or a multiplication by the condition",
            )


RULE = Rule("PTX602", "if-or-while-on-tensor", "warning", _check, __doc__, scope="module")
