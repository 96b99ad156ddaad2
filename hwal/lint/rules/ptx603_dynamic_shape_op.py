"""dynamic-shape-op

What: `nonzero`, one-argument `where`, `x[mask]` (read and written), `masked_select`, `unique`, `bincount`,
    `repeat_interleave` by a tensor, `pack_padded_sequence`.

Why: The result's size is data: torch_xla runs the graph to know it, and compiles again for each size.

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            y[y > 1.0] = 0.0

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            y = torch.where(y > 1.0, 0.0, y)

Fix safety: unsafe: a tensor that others hold is no longer changed in place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, keyword
from hwal.lint.source import Function


def _check(file: File) -> Iterator[Finding]:
    for node, function in file.step_nodes(ast.Call, ast.Subscript):
        if isinstance(node, ast.Call):
            yield from _called(file, node, function)
        elif isinstance(node, ast.Subscript):
            yield from _masked(file, node, function)


def _called(file: File, node: ast.Call, function: Function | None) -> Iterator[Finding]:
    """`t.nonzero()`, `torch.unique(t)`, `torch.where(m)`, `t.repeat_interleave(n)`."""
    tensor = file.steps.is_tensor
    name = file.source.names.resolve(node.func) or ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    last = name.rpartition(".")[2] if name.startswith("torch.") else method
    known = name.startswith("torch.") or (isinstance(node.func, ast.Attribute) and tensor(node.func.value, function))
    if known and (last in DYNAMIC or (last == "where" and len(node.args) == 1)):
        yield Finding(
            node,
            f"{last}: the size of its result is data, so that each size compiles again",
            "torch.where(mask, a, b), or a mask that is carried along",
        )
    elif (
        known
        and last == "repeat_interleave"
        and node.args
        and not isinstance(node.args[-1], ast.Constant)
        and tensor(node.args[-1], function)
        and keyword(node, "output_size") is None
    ):
        yield Finding(
            node, "repeat_interleave by a tensor: the size of its result is data", "a Python number, or output_size=…"
        )


def _masked(file: File, node: ast.Subscript, function: Function | None) -> Iterator[Finding]:
    """`x[mask]`, read and written; `x[mask] = number` has a fix."""
    tensor = file.steps.is_tensor
    if not (tensor(node.value, function) and _mask(node.slice) and tensor(node.slice, function)):
        return
    parent = file.source.parents.get(node)
    fix = None
    if isinstance(parent, ast.Assign) and parent.targets == [node] and isinstance(parent.value, ast.Constant):
        x, mask = edits.text(file.source, node.value), edits.text(file.source, node.slice)
        new = f"{x} = {x}.masked_fill({mask}, {edits.text(file.source, parent.value)})"
        fix = Fix("unsafe", "not in place", (edits.replace(file.source, parent, new),))
    yield Finding(
        node,
        "x[mask]: how many elements it has is data, so that each number compiles again",
        "torch.where(mask, a, b), or x.masked_fill(mask, value)",
        fix=fix,
    )


DYNAMIC = ("nonzero", "masked_select", "unique", "unique_consecutive", "bincount", "argwhere", "pack_padded_sequence")


def _mask(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert))
        or (isinstance(node, ast.Name) and "mask" in node.id)
    )


RULE = Rule("PTX603", "dynamic-shape-op", "warning", _check, __doc__, scope="module", fix="unsafe")
