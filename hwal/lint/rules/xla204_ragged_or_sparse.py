"""ragged-or-sparse

What: Ragged and sparse tensors in operations that XLA cannot compile: `to_tensor`, reductions, products, embedding look-ups.

Why: Their true sizes are data. XLA has no kernel for most of their operators. What does compile: `tf.sparse.to_dense`,
    `from_dense`, a ragged tensor's `values` and `row_lengths`.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(values, lengths):
        return tf.RaggedTensor.from_row_lengths(values, lengths).to_tensor()

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(padded, lengths):
        return padded * tf.sequence_mask(lengths, maxlen=16, dtype=padded.dtype)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace
from hwal.lint.families import family
from hwal.lint.values import RAGGED, SPARSE

HELP = "pad in the input pipeline (to_tensor(shape=…) there), and feed a dense tensor with a mask"


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        if family(call.short) == "sparse":
            yield Finding(call.node, f"XLA cannot compile tf.{call.short}", HELP)
        elif call.owner.kind == RAGGED and call.method in (
            "to_tensor",
            "to_sparse",
            "bounding_shape",
            "with_row_splits_dtype",
            "merge_dims",
        ):
            yield Finding(call.node, f"XLA cannot compile a ragged tensor's {call.method}", HELP)
        elif (
            call.name
            and call.short
            and not call.short.startswith(("RaggedTensor", "ragged.", "shape"))
            and any(v.kind == RAGGED for v in call.args)
        ):
            yield Finding(call.node, f"tf.{call.short} of a ragged tensor: its sizes are data, which XLA does not know", HELP)
        elif call.short in ("matmul", "linalg.matmul") and any(v.kind == SPARSE for v in call.args):
            yield Finding(call.node, "XLA cannot compile a product with a sparse tensor", HELP)


RULE = Rule("XLA204", "ragged-or-sparse", "error", _check, __doc__)
