"""stateful-random

What: `tf.random.normal`, `uniform`, `shuffle` and their like in compiled code.

Why: XLA ignores op-level seeds of stateful generators, so that two runs differ, and eager and compiled code too.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x + tf.random.normal([4], seed=1)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x + tf.random.stateless_normal([4], seed=[1, 2])

Fix safety: unsafe: other numbers are drawn.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.file import keyword


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        short = call.short

        if short in STATEFUL:
            fix = None
            source = trace.function.module
            seed = keyword(call.node, "seed")
            if short in TWINS and isinstance(seed, ast.Constant) and isinstance(call.node.func, ast.Attribute):
                name = edits.text(source, call.node.func.value)
                fix = Fix(
                    "unsafe",
                    "other numbers are drawn",
                    (
                        edits.replace(source, call.node.func, f"{name}.{TWINS[short]}"),
                        edits.replace(source, seed, f"[{seed.value!r}, 0]"),
                    ),
                )
            yield Finding(
                call.node,
                f"tf.{short} has hidden state, and XLA ignores its seed",
                "tf.random.stateless_… with a seed of your own",
                fix=fix,
            )


TWINS = {
    "random.normal": "stateless_normal",
    "random.uniform": "stateless_uniform",
    "random.truncated_normal": "stateless_truncated_normal",
}
STATEFUL = (
    *TWINS,
    "random.shuffle",
    "random.categorical",
    "image.random_flip_left_right",
    "image.random_brightness",
    "image.random_contrast",
)


RULE = Rule("XLA109", "stateful-random", "warning", _check, __doc__, fix="unsafe")
