"""raise-in-tensor-if

What: `raise` in a branch of a tensor `if`.

Why: While TensorFlow traces, it runs both branches: the exception is raised always, whatever the value.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        if tf.reduce_sum(x) < 0.0:
            raise ValueError("negative")
        return x

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        tf.debugging.assert_non_negative(tf.reduce_sum(x))
        return x
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if trace.autograph:
        for test in trace.tensor_tests("if"):
            if isinstance(test.node, ast.If) and any(isinstance(s, ast.Raise) for s in [*test.node.body, *test.node.orelse]):
                yield Finding(
                    test.node,
                    "`raise` in a tensor `if`: tracing runs both branches, so it is raised always",
                    "tf.debugging.assert_… (XLA drops it), or check on the host",
                )


RULE = Rule("XLA007", "raise-in-tensor-if", "error", _check, __doc__)
