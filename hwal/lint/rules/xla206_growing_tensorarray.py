"""growing-tensorarray

What: `tf.TensorArray(size=0, dynamic_size=True)` that is written element by element.

Why: It compiles, and returns the wrong shape: XLA's arrays do not grow, and nothing says so.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(3):
            rows = rows.write(i, x * tf.cast(i, tf.float32))
        return rows.stack()

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        rows = tf.TensorArray(tf.float32, size=3)
        for i in tf.range(3):
            rows = rows.write(i, x * tf.cast(i, tf.float32))
        return rows.stack()

Fix safety: unsafe: the size is the loop's count, which is right where every turn writes once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Call, Trace
from hwal.lint.file import keyword
from hwal.lint.values import ARRAY


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        if call.owner.kind == ARRAY and call.owner.what == "growing" and call.method == "write":
            yield Finding(
                call.node,
                "a TensorArray that starts empty does not grow under XLA: the result has the wrong shape, silently",
                "tf.TensorArray(dtype, size=n)",
                fix=_fix(trace, call),
            )


def _fix(trace: Trace, call: Call) -> Fix | None:
    """`size=0, dynamic_size=True` becomes the count of the one loop that writes."""
    source = trace.function.module
    for loop in trace.loops:
        if isinstance(loop.node, ast.For) and any(inner is call.node for inner in ast.walk(loop.node)):
            count = loop.node.iter
            if (
                not isinstance(count, ast.Call)
                or len(count.args) != 1
                or edits.text(source, count.func).rpartition(".")[2] != "range"
            ):
                return None
            for made in trace.calls:
                size = keyword(made.node, "size")
                if made.short == "TensorArray" and size is not None:
                    edit = edits.remove_keyword(source, made.node, "dynamic_size")
                    if edit:
                        return Fix(
                            "unsafe",
                            "the size is the loop's count",
                            (edits.replace(source, size, edits.text(source, count.args[0])), edit),
                        )
    return None


RULE = Rule("XLA206", "growing-tensorarray", "error", _check, __doc__, fix="unsafe")
