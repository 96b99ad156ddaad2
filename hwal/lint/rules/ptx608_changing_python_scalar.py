"""changing-python-scalar

What: A Python number that changes with each step, in arithmetic with tensors or as a size.

Why: It is a constant of the graph: each value is another graph, and compiles again.

Bad:
    import torch_xla

    def train(model, optimizer, x):
        for step in range(1000):
            loss = model(x)
            loss = loss * 0.9**step
            loss.backward()
            optimizer.step()
            torch_xla.sync()

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


def _check(file: File) -> Iterator[Finding]:
    steps = file.steps
    for node, function in file.step_nodes(ast.BinOp):
        if isinstance(node, ast.BinOp) and (counters := steps.counters(node)):
            for number, other in ((node.left, node.right), (node.right, node.left)):
                if steps.is_tensor(other, function) and not steps.is_tensor(number, function):
                    used = {n.id for n in ast.walk(number) if isinstance(n, ast.Name)} & counters
                    if used:
                        yield Finding(
                            node,
                            f"`{sorted(used)[0]}` is a Python number that changes with each step: each value is another graph",
                            "torch.tensor(…, device=…) outside the loop, changed in place",
                        )
                        break


RULE = Rule("PTX608", "changing-python-scalar", "warning", _check, __doc__, scope="module")
