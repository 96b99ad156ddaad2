"""assert-dropped

What: `tf.debugging.assert_…` and `tf.debugging.check_numerics` in compiled code.

Why: XLA drops assertions: a wrong value passes silently.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        tf.debugging.assert_positive(x)
        return tf.math.log(x)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        tf.debugging.assert_shapes([(x, ("n", 4))])
        return tf.math.log(x)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        short = call.short

        if short.startswith("debugging.") and short not in STATIC:
            yield Finding(
                call.node, f"XLA drops tf.{short}", "check on the host; assertions about static shapes are made while tracing"
            )


STATIC = (
    "debugging.assert_shapes",
    "debugging.assert_rank",
    "debugging.assert_type",
    "debugging.assert_rank_at_least",
    "debugging.assert_rank_in",
    "debugging.assert_scalar",
    "debugging.assert_proper_iterable",
    "debugging.assert_same_float_dtype",
    "debugging.is_numeric_tensor",
    "debugging.enable_check_numerics",
    "debugging.set_log_device_placement",
)


RULE = Rule("XLA108", "assert-dropped", "info", _check, __doc__)
