"""tensor-if-becomes-cond

What: `if` or `while` on a tensor that AutoGraph turns into `tf.cond` or `tf.while_loop`.

Why: It compiles, and equals eager. It is good to know that both branches are compiled, that each must give the same dtypes,
    and that the same line in a Keras layer would be an error.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        if tf.reduce_sum(x) > 0.0:
            x = x * 2.0
        return x

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, training=False):
        if training:
            x = x * 2.0
        return x
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if trace.autograph:
        for test in trace.tensor_tests("if", "while", "ifexp"):
            made = "tf.while_loop" if test.kind == "while" else "tf.cond"
            yield Finding(
                test.node, f"AutoGraph turns this into {made}: XLA compiles every branch", "nothing to do where that is meant"
            )


RULE = Rule("XLA002", "tensor-if-becomes-cond", "info", _check, __doc__)
