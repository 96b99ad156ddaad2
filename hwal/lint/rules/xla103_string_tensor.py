"""string-tensor

What: A string operation.

Why: XLA has no strings: neither as arguments nor inside.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(s):
        return tf.strings.to_hash_bucket_fast(s, 8)

Good:
    import tensorflow as tf

    def encode(s):
        return tf.strings.to_hash_bucket_fast(s, 8)

    def data(words):
        return tf.data.Dataset.from_tensor_slices(words).map(encode)
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

        if family(short) == "string":
            yield Finding(
                call.node,
                f"tf.{short} works on strings, which XLA has not",
                "do it in the input pipeline (Dataset.map), and feed numbers",
            )


RULE = Rule("XLA103", "string-tensor", "error", _check, __doc__)
