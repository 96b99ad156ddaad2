"""batch-not-multiple-of-8-per-replica

What: A batch that gives each core a number of rows that is no multiple of 8.

Why: A TPU's memory is laid out in tiles of 8 × 128: other sizes are padded.

Bad:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    data = tf.data.Dataset.range(1000).batch(100, drop_remainder=True)

Good:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    data = tf.data.Dataset.range(1000).batch(128, drop_remainder=True)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.on_tpu:
        return
    for call, _ in file.method_calls("batch"):
        size = call.args[0] if call.args else keyword(call, "batch_size")
        per_replica = False
        if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mult) and "num_replicas" in ast.unparse(size):
            size = size.left if isinstance(size.left, ast.Constant) else size.right
            per_replica = True
        if isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value % (8 if per_replica else 64):
            yield Finding(
                size,
                f"{size.value} rows{'' if per_replica else ' over 8 cores'}: no multiple of 8 for each, so the rest is padding",
                "a multiple of 8 for each core, 128 for the best use",
            )


RULE = Rule("TPU505", "batch-not-multiple-of-8-per-replica", "info", _check, __doc__, scope="module")
