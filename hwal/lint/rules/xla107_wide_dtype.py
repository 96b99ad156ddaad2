"""wide-dtype

What: float64 and complex128 on an accelerator.

Why: A TPU emulates float64, many times slower than float32, and has no complex128 for most operators.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.cast(x, tf.float64) * 2.0

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.cast(x, tf.float32) * 2.0

Fix safety: unsafe: fewer digits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule, tpu_error
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    source = trace.function.module
    for call in trace.calls:
        if not call.short:
            continue
        for part, value in [
            *zip(call.node.args, call.args, strict=False),
            *((k.value, call.kwargs[k.arg]) for k in call.node.keywords if k.arg),
        ]:
            if value.what in ("dtype.float64", "dtype.double", "dtype.complex128"):
                wide = value.what[6:]
                narrow = "complex64" if wide == "complex128" else "float32"
                severity = tpu_error("info") if wide == "complex128" else None
                fix = None
                if isinstance(part, ast.Attribute):
                    new = f"{edits.text(source, part.value)}.{narrow}"
                    fix = Fix("unsafe", "fewer digits", (edits.replace(source, part, new),))
                said = "a TPU has no complex128" if severity else f"a TPU emulates {wide}, slowly"
                yield Finding(part, said, f"{narrow}, or keep this on the host", severity, fix)


RULE = Rule("XLA107", "wide-dtype", {"tpu": "warning", "gpu": "info", "cpu": "info"}, _check, __doc__, fix="unsafe")
