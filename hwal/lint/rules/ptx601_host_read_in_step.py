"""host-read-in-step

What: `.item()`, `float(t)`, `print(t)`, `.cpu()`, `.numpy()` of a tensor in each step, and a distribution of
    torch.distributions, which looks at its arguments unless `validate_args=False`.

Why: torch_xla collects operations and runs them as one graph. Reading a value on the host cuts the graph, runs it, and waits.

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            print(loss.item())

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            print("a step")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    steps = file.steps
    for node, function in file.step_nodes(ast.Call, ast.FormattedValue):
        if steps.seldom(node, function):
            continue
        if isinstance(node, ast.FormattedValue) and steps.is_tensor(node.value, function):
            yield Finding(node.value, "a tensor is written into text in each step: the graph is cut, run and waited for", HELP)
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in READS and steps.is_tensor(func.value, function):
            yield Finding(node, f"`.{func.attr}()` in each step: the graph is cut, run and waited for", HELP)
        elif (
            isinstance(func, ast.Name)
            and func.id in ("float", "int", "print", "bool")
            and any(steps.is_tensor(arg, function) for arg in node.args)
        ):
            yield Finding(node, f"`{func.id}` of a tensor in each step: the graph is cut, run and waited for", HELP)
        elif _looks(file, node) and any(
            steps.is_tensor(arg, function) for arg in [*node.args, *(k.value for k in node.keywords)]
        ):
            yield Finding(node, "a distribution checks its arguments on the host in each step", "validate_args=False")


def _looks(file: File, call: ast.Call) -> bool:
    """Whether a call makes a distribution that checks what it is given."""
    name = file.source.names.resolve(call.func) or ""
    last = name.rpartition(".")[2]
    made = name.startswith("torch.distributions.") and last[:1].isupper() and last not in WRAPPERS
    off = any(True for _ in file.method_calls("set_default_validate_args"))
    asked = keyword(call, "validate_args")
    if any(k.arg is None for k in call.keywords) or (asked is not None and not isinstance(asked, ast.Constant)):
        return False
    return made and (asked.value is True if isinstance(asked, ast.Constant) and asked.value is not None else not off)


WRAPPERS = ("Independent", "TransformedDistribution", "MixtureSameFamily")
"""Distributions of other distributions, which have no arguments of their own to check."""

READS = ("item", "tolist", "numpy", "cpu")
HELP = "keep the tensor, and read it every so many steps (xm.add_step_closure, hwal's rt.log)"


RULE = Rule("PTX601", "host-read-in-step", "warning", _check, __doc__, scope="module")
