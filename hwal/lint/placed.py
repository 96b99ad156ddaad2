"""Placed: which tensors of a torch script are the host's for certain, whose sizes and places make no graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.source import Function, Source

CREATED = frozenset(
    {
        "tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye",
        "from_numpy",
}
)  # fmt: skip
"""Functions of torch whose result is on the CPU where no `device=` is given."""

SENDING = frozenset({"to", "cuda", "xla"})


def on_host(node: ast.expr, function: Function | None, source: Source) -> bool:
    """Whether a tensor is on the CPU: it is made there and never sent away, or a part of it is sent: `x[a:b].to(device)`."""
    return _sent(node, source) or (_made(node, function, source) and not _default_device(source))


def _sent(node: ast.expr, source: Source) -> bool:
    """Whether a part of a tensor, `x[a:b]` or `x.narrow(…)`, is sent to a device as it is."""
    part = source.parents.get(node)
    if isinstance(part, ast.Attribute):
        part = source.parents.get(part)
    method = source.parents.get(part) if part is not None else None
    call = source.parents.get(method) if isinstance(method, ast.Attribute) and method.value is part else None
    if not isinstance(call, ast.Call) or not isinstance(method, ast.Attribute) or call.func is not method:
        return False
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "device")]
    return method.attr in SENDING and (method.attr != "to" or any(not _dtype(one, source) for one in given))


def _dtype(node: ast.expr, source: Source) -> bool:
    """Whether `.to(…)` is given a dtype: `torch.float32`, `y.dtype`."""
    return (source.names.resolve(node) or "").startswith("torch.") or (isinstance(node, ast.Attribute) and node.attr == "dtype")


def _made(node: ast.expr, function: Function | None, source: Source, seen: frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Name):
        if node.id in seen:
            return True  # x = x.float(), of an x that some other line makes
        made = list(_assigned(node.id, function, source))
        return bool(made) and all(one is not None and _made(one, function, source, seen | {node.id}) for one in made)
    if isinstance(node, ast.Subscript):
        return _made(node.value, function, source, seen)
    if not isinstance(node, ast.Call):
        return False
    name = source.names.resolve(node.func)
    if name is not None:
        placed = any(k.arg in ("device", None) for k in node.keywords)
        return name.removeprefix("torch.") in CREATED and not placed and not _under_device(node, source)
    if isinstance(node.func, ast.Attribute) and node.func.attr not in SENDING:
        return _made(node.func.value, function, source, seen)
    return False


def _assigned(name: str, function: Function | None, source: Source) -> Iterator[ast.expr | None]:
    """What a name is given, in its function or else at the file's top; None for what cannot be told."""
    scope: ast.AST = source.tree if function is None else function.node
    nodes = list(ast.walk(scope))
    if (
        function is not None
        and not any(_stores(node, name) for node in nodes)
        and all(p.arg != name for p in function.parameters)
    ):
        nodes = list(ast.walk(source.tree))
    known: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                if isinstance(target, ast.Name) and target.id == name:
                    known.add(id(target))
                    yield value
        elif isinstance(node, ast.arg) and node.arg == name:
            yield None
    yield from (None for node in nodes if _stores(node, name) and id(node) not in known)


def _stores(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Target and value of `x = …` and of `x, y = …, …`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _under_device(node: ast.AST, source: Source) -> bool:
    """Whether a `with` around a node may say where tensors are made: `with torch.device("xla"):`, `with device:`."""
    current = source.parents.get(node)
    while current is not None:
        if isinstance(current, ast.With):
            for item in current.items:
                call = item.context_expr
                name = source.names.resolve(call.func) if isinstance(call, ast.Call) else None
                if isinstance(call, ast.Name | ast.Attribute) or name == "torch.device":
                    return True
        current = source.parents.get(current)
    return False


def _default_device(source: Source) -> bool:
    return any(isinstance(c.func, ast.Attribute) and c.func.attr.startswith("set_default_") for c, _ in source.calls)
