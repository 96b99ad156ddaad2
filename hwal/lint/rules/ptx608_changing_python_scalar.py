"""changing-python-scalar

What: A Python number that changes with each step, as an exponent, as a size, a place or a slice, or as the length of a loop
    over tensors. Counters are those of the loop that has the step; what the CPU's own tensors are asked makes no graph.

Why: It is a constant of the graph: each value is another graph, and compiles again. A number that is multiplied, added or
    compared is not: torch_xla passes it as data (measured with torch_xla 2.8).

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for step, (x, y) in enumerate(loader):
            loss = model(x, y)
            loss = loss ** (1.0 + 0.1 * step)
            loss.backward()
            optimizer.step()
            torch_xla.sync()

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for step, (x, y) in enumerate(loader):
            loss = model(x, y)
            loss = loss * (1.0 + 0.1 * step)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File
from hwal.lint.placed import on_host
from hwal.lint.source import Function

BOTH = frozenset(
    {
        "roll", "narrow", "select", "split", "chunk", "tril", "triu", "diag", "diagonal", "kthvalue", "topk", "pow", "norm",
        "unfold", "repeat_interleave",
}
)  # fmt: skip
SIZED = BOTH | {"zeros", "ones", "empty", "rand", "randn", "arange", "eye", "linspace", "pad", "one_hot"}
METHODS = BOTH | {"repeat", "expand", "view", "reshape", "new_zeros", "new_ones"}
"""Functions of torch, and methods of a tensor, whose numbers are sizes, places and exponents: each was counted."""


def _check(file: File) -> Iterator[Finding]:
    for node, function in file.step_nodes(ast.BinOp, ast.Call, ast.For, ast.Subscript):
        for what, part in _constants(file, node, function):
            names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
            used = sorted(names & file.steps.moving(node)) if names else []
            if used:
                yield Finding(
                    node,
                    f"`{used[0]}` changes with each step and is {what}: each value is another graph, and compiles again",
                    "torch.tensor(…, device=…) for an exponent; one size, and a mask; a fixed number of turns",
                )
                break


def _constants(file: File, node: ast.AST, function: Function | None) -> Iterator[tuple[str, ast.expr]]:
    """The parts of a node that torch_xla makes constants of its graph."""

    def tensor(node: ast.expr, function: Function | None) -> bool:
        return file.steps.is_tensor(node, function) and not on_host(node, function, file.source)

    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if tensor(node.left, function) and not tensor(node.right, function):
            yield "an exponent", node.right
        elif tensor(node.right, function) and not tensor(node.left, function):
            yield "the base of a power", node.left
    elif isinstance(node, ast.Call):
        name = file.source.names.resolve(node.func) or ""
        given = [*node.args, *(k.value for k in node.keywords)]
        if name.startswith("torch.") and name.rpartition(".")[2] in SIZED:
            yield from (("a size", argument) for argument in given if not tensor(argument, function))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and tensor(node.func.value, function):
            yield from (("a size", argument) for argument in given)
    elif isinstance(node, ast.Subscript) and tensor(node.value, function):
        yield from (("a place", part) for part in _places(node.slice) if not tensor(part, function))
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "range":
        inside = (inner for statement in node.body for inner in ast.walk(statement) if isinstance(inner, ast.expr))
        limits = node.iter.args if any(tensor(inner, function) for inner in inside) else []
        yield from (("the length of a loop", argument) for argument in limits)


def _places(index: ast.expr) -> Iterator[ast.expr]:
    """The parts of `x[a, b:c]`."""
    for part in index.elts if isinstance(index, ast.Tuple) else [index]:
        if isinstance(part, ast.Slice):
            yield from (bound for bound in (part.lower, part.upper, part.step) if bound is not None)
        else:
            yield part


RULE = Rule("PTX608", "changing-python-scalar", "warning", _check, __doc__, scope="module")
