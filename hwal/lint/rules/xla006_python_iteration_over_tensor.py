"""python-iteration-over-tensor

What: Python's own iteration over a tensor: `enumerate`, `zip`, `list`, `sum`, `*t`, `a, b = t`, comprehensions; and `for`
    where AutoGraph is off.

Why: A symbolic tensor has no iterator. AutoGraph converts the `for` statement alone.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.stack([row * 2.0 for row in x])

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.stack([row * 2.0 for row in tf.unstack(x)])

Fix safety: safe: tf.unstack gives the same rows wherever the first dimension is known, as it is under XLA.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    source = trace.function.module
    for one in trace.iterations:
        if not one.value.is_tensor or (one.how == "for" and trace.autograph):
            continue
        node = one.node
        where = node.iter if isinstance(node, ast.comprehension) else node
        fix = None
        tf = edits.module_name(source, "tensorflow")
        target = where if isinstance(node, ast.comprehension) or one.how == "for" else None
        if isinstance(target, ast.expr) and tf and one.value.what != "range" and one.how in ("for", "comprehension"):
            fix = Fix(
                "safe",
                "tf.unstack gives the rows",
                (edits.replace(source, target, f"{tf}.unstack({edits.text(source, target)})"),),
            )
        off = "" if trace.autograph else " (AutoGraph is off here)"
        yield Finding(
            where,
            f"Python iterates over a symbolic tensor ({one.how}), which raises while tracing{off}",
            "tf.unstack(t), or tf.map_fn / tf.vectorized_map",
            fix=fix,
        )


RULE = Rule("XLA006", "python-iteration-over-tensor", "error", _check, __doc__, fix="safe")
