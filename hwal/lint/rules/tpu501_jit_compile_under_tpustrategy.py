"""jit-compile-under-tpustrategy

What: `jit_compile=True` in a program with a TPUStrategy.

Why: Under a TPUStrategy everything is compiled already; `jit_compile=True` asks for XLA on the host's devices, and fails.

Bad:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()

    @tf.function(jit_compile=True)
    def step(x):
        return x * 2.0

Good:
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()

    @tf.function
    def step(x):
        return x * 2.0

Fix safety: safe: eager results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule, tpu_error
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.on_tpu:
        return
    for call, _ in file.source.calls:
        if is_constant(keyword(call, "jit_compile"), True):
            edit = edits.remove_keyword(file.source, call, "jit_compile")
            fix = Fix("safe", "TPUStrategy compiles", (edit,)) if edit else None
            yield Finding(
                call, "jit_compile=True under a TPUStrategy, which compiles everything itself", "leave it out", fix=fix
            )


RULE = Rule("TPU501", "jit-compile-under-tpustrategy", tpu_error("info"), _check, __doc__, scope="module", fix="safe")
