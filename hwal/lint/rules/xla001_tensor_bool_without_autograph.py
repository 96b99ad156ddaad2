"""tensor-bool-without-autograph

What: `if`, `while`, `and`, `not` or a chained comparison on a tensor where AutoGraph is off.

Why: Keras 3 traces `call`, losses, metrics and `train_step` without AutoGraph, so Python asks a symbolic tensor for its truth
    and TensorFlow raises OperatorNotAllowedInGraphError. Under `tf.function` the same line would become `tf.cond`.

Bad:
    import keras
    import tensorflow as tf

    class Scale(keras.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0.0:
                return x * 2.0
            return x

Good:
    import keras
    import tensorflow as tf

    class Scale(keras.layers.Layer):
        def call(self, x):
            return tf.where(tf.reduce_sum(x) > 0.0, x * 2.0, x)

Fix safety: unsafe: both branches are computed, so that what one of them must not see (a division by zero) is seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Edit, Finding, Fix, Rule
from hwal.lint.events import Test, Trace
from hwal.lint.values import Value

KINDS = {
    "if": "`if`",
    "while": "`while`",
    "ifexp": "a conditional expression",
    "and": "`and` or `or`",
    "not": "`not`",
    "compare": "a chained comparison",
}


def _check(trace: Trace) -> Iterator[Finding]:
    if trace.autograph:
        return
    told: set[int] = set()
    for test in sorted(trace.tests, key=lambda t: t.node.lineno):  # type: ignore[attr-defined]
        if test.kind not in KINDS or not test.value.is_tensor or test.node.lineno in told:  # type: ignore[attr-defined]
            continue
        told.add(test.node.lineno)  # type: ignore[attr-defined]
        where = "Keras traces this without AutoGraph" if trace.context.keras else "AutoGraph does not convert this function"
        yield Finding(
            test.node,
            f"{KINDS[test.kind]} on a tensor: {where}, so Python asks a symbolic tensor for its truth",
            "tf.while_loop, or a fixed number of steps" if test.kind == "while" else "tf.where(condition, a, b), or tf.cond",
            fix=_fix(trace, test),
        )


def _fix(trace: Trace, test: Test) -> Fix | None:
    """`if t: return a` + `return b`, `x = a if t else b` and `if t: x = a` become tf.where."""
    source = trace.function.module
    tf = edits.module_name(source, "tensorflow")
    node = test.node
    if tf is None:
        return None
    if isinstance(node, ast.IfExp):
        parts = (edits.text(source, part) for part in (node.test, node.body, node.orelse))
        return Fix("unsafe", "tf.where computes both", (edits.replace(source, node, f"{tf}.where({', '.join(parts)})"),))
    if not isinstance(node, ast.If) or len(node.body) != 1 or len(node.orelse) > 1:
        return None
    first = node.body[0]
    if isinstance(first, ast.Return) and first.value is not None:
        after = node.orelse[0] if node.orelse else _next(trace, node)
        if isinstance(after, ast.Return) and after.value is not None and not isinstance(after.value, ast.Tuple | ast.Dict):
            parts = (edits.text(source, part) for part in (node.test, first.value, after.value))
            new = f"return {tf}.where({', '.join(parts)})"
            line, column, _, _ = edits.span(source, node)
            _, _, end_line, end = edits.span(source, after)
            return Fix("unsafe", "tf.where computes both branches", (Edit(line, column, end_line, end, new),))
    if isinstance(first, ast.Assign) and len(first.targets) == 1 and isinstance(first.targets[0], ast.Name):
        name = first.targets[0].id
        other = name
        if node.orelse:
            last = node.orelse[0]
            if not isinstance(last, ast.Assign) or edits.text(source, last.targets[0]) != name or len(last.targets) != 1:
                return None
            other = edits.text(source, last.value)
        elif test.before is None or not test.before.get(name, Value()).is_tensor:
            return None
        new = f"{name} = {tf}.where({edits.text(source, node.test)}, {edits.text(source, first.value)}, {other})"
        return Fix("unsafe", "tf.where computes both branches", (edits.replace(source, node, new),))
    return None


def _next(trace: Trace, node: ast.If) -> ast.stmt | None:
    parent = trace.function.module.parents.get(node)
    body = getattr(parent, "body", None)
    if isinstance(body, list) and node in body and body.index(node) + 1 < len(body):
        following: ast.stmt = body[body.index(node) + 1]
        return following
    return None


RULE = Rule("XLA001", "tensor-bool-without-autograph", "error", _check, __doc__, fix="unsafe")
