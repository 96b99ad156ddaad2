"""branch-mismatch

What: The branches of a tensor `if` that do not define the same names with the same dtypes and structure, and a tensor loop
    whose variables change dtype or shape.

Why: `tf.cond` and `tf.while_loop` have one signature. AutoGraph raises "must also be initialized in the else branch", "has
    dtype float32 in the main branch, but dtype int32 in the else branch", "has shape (4,) before the loop, but shape (8,)
    after".

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        if tf.reduce_mean(x) > 0.5:
            y = x / 2.0
        return y

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        y = x
        if tf.reduce_mean(x) > 0.5:
            y = x / 2.0
        return y
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import shapes
from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Test, Trace
from hwal.lint.values import Value

GROWING = ("concat", "pad", "tile", "expand_dims", "repeat", "stack", "boolean_mask")


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.autograph:
        return
    for test in trace.tensor_tests("if"):
        if isinstance(test.node, ast.If) and test.before is not None and test.body is not None and test.orelse is not None:
            yield from _branches(trace, test, test.node)
    for one in trace.combined:
        for whole, other in ((one.left, one.right), (one.right, one.left)):
            if whole.loop and (whole.dtype or "").startswith("int") and _float(other):
                yield Finding(
                    one.node,
                    f"an {whole.dtype} of a tensor loop meets a float, which it cannot become",
                    "start from a float: 0.0",
                )
                break
    for loop in trace.loops:
        if loop.tensor:
            for name, before in loop.before.items():
                after = loop.after.get(name)
                if after is not None and (a := dtype(before)) and (b := dtype(after)) and a != b:
                    yield Finding(
                        loop.node,
                        f"`{name}` is {a} before the loop and {b} after one turn of it",
                        f"give it its dtype before the loop: tf.cast(…, tf.{b})",
                    )
            for statement in loop.node.body:
                if isinstance(statement, ast.Assign) and (grown := _grows(trace, statement)) and grown in loop.before:
                    yield Finding(
                        loop.node,
                        f"`{grown}` changes its shape in the loop, and a compiled loop's variables have one",
                        "a tensor of the final size with tensor_scatter_nd_update, or tf.TensorArray(size=…)",
                    )


def _branches(trace: Trace, test: Test, node: ast.If) -> Iterator[Finding]:
    before, body, orelse = test.before or {}, test.body or {}, test.orelse or {}
    body_ends, else_ends = leaving(node.body), leaving(node.orelse)
    if not body_ends and not else_ends:
        for name in sorted({*body, *orelse}):
            a, b = body.get(name), orelse.get(name)
            if name in before and before[name] is a and before[name] is b:
                continue
            if (
                (a is None or b is None)
                and name not in before
                and (a or b or Value()).what != "function"
                and _read_after(trace, node, name)
            ):
                yield Finding(
                    node,
                    f"`{name}` is set in one branch of a tensor `if` and not in the other",
                    f"set `{name}` before the `if`, or in both branches",
                )
            elif (
                a is not None
                and b is not None
                and (x := dtype(a))
                and (y := dtype(b))
                and x != y
                and _read_after(trace, node, name)
            ):
                yield Finding(
                    node, f"`{name}` is {x} in one branch of a tensor `if` and {y} in the other", "tf.cast one of them"
                )
            elif a is not None and b is not None and _shapes_differ(a, b) and _read_after(trace, node, name):
                yield Finding(
                    node,
                    f"`{name}` has shape {_shape(a)} in one branch of a tensor `if` and {_shape(b)} in the other",
                    "tf.broadcast_to or tf.reshape one of them: XLA wants one shape",
                )
            elif (
                a is not None
                and b is not None
                and _none(a) != _none(b)
                and (a.is_tensor or b.is_tensor)
                and _read_after(trace, node, name)
            ):
                yield Finding(
                    node,
                    f"`{name}` is None in one branch of a tensor `if` and a tensor in the other",
                    "a tensor of the same shape in both, tf.zeros_like say",
                )
    if body_ends and not node.orelse and isinstance(node.body[-1], ast.Return):
        mine = [value for statement, value, _ in trace.returns if statement is node.body[-1]]
        later = [value for statement, value, _ in trace.returns if statement.lineno > (node.end_lineno or 0)]  # type: ignore[attr-defined]
        if not later and node.body[-1].value is not None and not test.place.loops and not _raises_after(trace, node):
            yield Finding(
                node,
                "a tensor `if` returns in one branch, and the function ends without a value in the other",
                "return a value in both",
            )
        elif mine and len(later) == 1:
            a, b = mine[0], later[0]
            if (a.items is None) != (b.items is None) and (a.is_tensor or b.is_tensor):
                yield Finding(
                    node,
                    "the branches of a tensor `if` return different structures",
                    "return the same number of tensors in both",
                )
            elif (x := dtype(a)) and (y := dtype(b)) and x != y:
                yield Finding(node, f"one branch of a tensor `if` returns {x}, the other {y}", "tf.cast one of them")
            elif _shapes_differ(a, b):
                yield Finding(
                    node,
                    f"one branch of a tensor `if` returns the shape {_shape(a)}, the other {_shape(b)}",
                    "tf.broadcast_to or tf.reshape one of them: XLA wants one shape",
                )


def leaving(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def dtype(value: Value) -> str | None:
    """The dtype of a tensor, or the one that a Python number gets."""
    if value.dtype and value.is_tensor:
        return value.dtype
    if value.known and isinstance(value.const, bool):
        return "bool"
    if value.known and isinstance(value.const, int | float):
        return "float32" if isinstance(value.const, float) else "int32"
    return None


def _shapes_differ(a: Value, b: Value) -> bool:
    return (a.is_tensor or b.is_tensor) and shapes.differ(shapes.of(a), shapes.of(b))


def _shape(value: Value) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in shapes.of(value) or ())})"


def _float(value: Value) -> bool:
    """A Python float, or a tensor of floats."""
    if value.is_tensor:
        return (value.dtype or "").startswith(("float", "bfloat"))
    return value.known and isinstance(value.const, float)


def _none(value: Value) -> bool:
    return value.known and value.const is None


def _raises_after(trace: Trace, node: ast.If) -> bool:
    return any(statement.lineno > node.lineno for statement, _ in trace.raises)


def _read_after(trace: Trace, node: ast.If, name: str) -> bool:
    """Whether a name is read after a branch before it is set again: on a later line, or anywhere in a loop around it."""
    end = node.end_lineno or node.lineno
    for inner in ast.walk(trace.function.node):
        if isinstance(inner, ast.Name) and inner.id == name and inner.lineno > end:
            return not (isinstance(inner.ctx, ast.Store)) or _same_statement(trace, inner)
    return False


def _same_statement(trace: Trace, node: ast.Name) -> bool:
    """Whether the statement that sets a name reads it too."""
    statement = trace.function.module.parents.get(node)
    return statement is not None and any(
        isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Load) for n in ast.walk(statement)
    )


def _grows(trace: Trace, node: ast.Assign) -> str | None:
    """The name that `x = tf.concat([x, …], 0)` makes longer."""
    call, target = node.value, node.targets[0]
    if isinstance(call, ast.Call) and isinstance(target, ast.Name):
        name = trace.function.module.names.resolve(call.func)
        if name and name.startswith("tensorflow.") and name[11:] in GROWING and call.args:
            first = call.args[0]
            parts = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
            if any(isinstance(part, ast.Name) and part.id == target.id for part in parts):
                return target.id
    return None


RULE = Rule("XLA005", "branch-mismatch", "error", _check, __doc__)
