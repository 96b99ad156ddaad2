"""missing-static-bound

What: `tf.sequence_mask` without `maxlen`, `tf.math.confusion_matrix` without `num_classes`, `tf.math.bincount`, `tf.one_hot`
    from data.

Why: Without the bound, the size of the result is the largest value in the data, which XLA does not know while it compiles.
    The size of `tf.math.bincount` is computed even with `maxlength`.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(lengths):
        return tf.sequence_mask(lengths)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(lengths):
        return tf.sequence_mask(lengths, maxlen=128)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule, tpu_error
from hwal.lint.events import Trace
from hwal.lint.values import depends, in_loop

BOUNDS = {
    "sequence_mask": (1, "maxlen", "maxlen=…"),
    "math.confusion_matrix": (2, "num_classes", "num_classes=…"),
    "math.bincount": (99, "-", "tf.math.unsorted_segment_sum(tf.ones_like(x), x, num_segments)"),
    **{f"keras.ops.segment_{name}": (2, "num_segments", "num_segments=…") for name in ("max", "min", "prod")},
    "keras.ops.bincount": (99, "-", "keras.ops.segment_sum with num_segments"),
}


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        row = BOUNDS.get(call.short or call.name or "")
        if row and any(depends(value) for value in [*call.args, *call.kwargs.values()]):
            position, keyword, advice = row
            value = call.argument(position, keyword)
            if value is None or (value.known and value.const is None):
                loop = any(in_loop(given) for given in call.args)
                yield Finding(
                    call.node,
                    f"{call.method or call.short} is as large as the largest value in the data, which XLA does not know",
                    advice,
                    "error" if loop else None,
                )


RULE = Rule("XLA203", "missing-static-bound", tpu_error(), _check, __doc__)
