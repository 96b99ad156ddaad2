"""batch-without-drop-remainder

What: `Dataset.batch(n)` without `drop_remainder=True` in a program that asks for XLA or a TPU.

Why: The last batch is smaller: one more shape, one more compilation, and on a TPU often an error.

Bad:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    data = tf.data.Dataset.range(100).batch(32)

Good:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    data = tf.data.Dataset.range(100).batch(32, drop_remainder=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.compiles or not any(name.startswith("tensorflow.data.") for name, _, _ in file.named_calls):
        return
    for call, _ in file.method_calls("batch", "padded_batch"):
        if (
            file.source.names.resolve(call.func) is None
            and call.args
            and not is_constant(keyword(call, "drop_remainder"), True)
        ) and (len(call.args) < 2 or call.func.attr == "padded_batch"):  # type: ignore[attr-defined]
            yield Finding(call, "the last batch is smaller: one more shape and one more compilation", "drop_remainder=True")


RULE = Rule("XLA301", "batch-without-drop-remainder", "warning", _check, __doc__, scope="module")
