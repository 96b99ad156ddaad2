"""unsupported-segment-or-set-op

What: `tf.math.segment_sum` and its like (sorted), `tf.unique_with_counts`, `tf.sets.…`, `tf.edit_distance`.

Why: XLA has no kernel for them. The unsorted segment operations, with `num_segments`, compile.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, ids):
        return tf.math.segment_sum(x, ids)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, ids):
        return tf.math.unsorted_segment_sum(x, ids, num_segments=16)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace
from hwal.lint.families import family


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        short = call.short

        if family(short) == "segment":
            advice = (
                "tf.math.unsorted_… with num_segments"
                if "segment" in short
                else "compare with broadcasting, or do it in the input pipeline"
            )
            yield Finding(call.node, f"XLA has no kernel for tf.{short}", advice)


RULE = Rule("XLA205", "unsupported-segment-or-set-op", "error", _check, __doc__)
