"""list-append-in-tensor-loop

What: A Python list, set or dict that grows in a loop over tensors.

Why: The loop's body is traced once, so the list gets one symbolic tensor of the loop's inside, and using it outside raises
    InaccessibleTensorError.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        rows = []
        for i in tf.range(3):
            rows.append(x * tf.cast(i, tf.float32))
        return tf.stack(rows)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        rows = []
        for i in range(3):
            rows.append(x * tf.cast(i, tf.float32))
        return tf.stack(rows)

Fix safety: unsafe: `range` for `tf.range` unrolls the loop, which a large count makes slow to compile.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.values import LIST, PYTHON, TENSORS, holds_tensor


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.autograph:
        return
    for call in trace.calls:
        if (
            call.method in ("append", "extend", "insert", "add", "appendleft")
            and "tensor" in call.place.loops
            and call.owner.kind == PYTHON
            and call.owner.what in (None, TENSORS, LIST, "global")
            and any(holds_tensor(value) for value in call.args)
        ):
            yield Finding(
                call.node,
                f"`{call.method}` in a loop over tensors: its body is traced once, and the list keeps a tensor of its inside",
                "tf.TensorArray(dtype, size=n), or a Python range, which is unrolled",
                fix=_fix(trace, call.node),
            )
    for store in trace.stores:
        if isinstance(store.node, ast.AugAssign) and "tensor" in store.place.loops and isinstance(store.node.value, ast.List):
            yield Finding(
                store.node,
                "a list grows in a loop over tensors: its structure changes with each turn",
                "tf.TensorArray(dtype, size=n), or a Python range, which is unrolled",
                fix=_fix(trace, store.node),
            )


def _fix(trace: Trace, node: ast.AST) -> Fix | None:
    """`for i in tf.range(3)` of a constant becomes `range(3)`."""
    source = trace.function.module
    for loop in trace.loops:
        if loop.tensor and any(inner is node for inner in ast.walk(loop.node)) and isinstance(loop.node, ast.For):
            call = loop.node.iter
            plain = isinstance(call, ast.Call) and not call.keywords and all(isinstance(a, ast.Constant) for a in call.args)
            if isinstance(call, ast.Call) and plain and source.names.resolve(call.func) == "tensorflow.range":
                return Fix("unsafe", "the loop is unrolled", (edits.replace(source, call.func, "range"),))
    return None


RULE = Rule("XLA008", "list-append-in-tensor-loop", "error", _check, __doc__, fix="unsafe")
