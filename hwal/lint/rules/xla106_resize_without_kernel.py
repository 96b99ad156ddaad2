"""resize-without-kernel

What: `tf.image.resize` with `bicubic`, `area`, `lanczos3`, `lanczos5`, `gaussian`, `mitchellcubic`, or with `antialias=True`.

Why: XLA compiles bilinear and nearest resizing only.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.image.resize(x, [4, 4], method="bicubic")

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.image.resize(x, [4, 4], method="bilinear")

Fix safety: unsafe: another method gives other pixels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace

METHODS = ("bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
ENUM = ("BICUBIC", "AREA", "LANCZOS3", "LANCZOS5", "GAUSSIAN", "MITCHELLCUBIC")


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    source = trace.function.module
    for call in trace.calls:
        if call.short not in ("image.resize", "image.resize_with_pad", "compat.v1.image.resize"):
            continue
        position = 2 if call.short != "image.resize_with_pad" else 3
        method = call.argument_node(position, "method")
        value = call.argument(position, "method")
        antialias = call.argument(99, "antialias")
        name = (
            str(value.const)
            if value is not None and value.known
            else method.attr.lower()
            if isinstance(method, ast.Attribute)
            else ""
        )
        if name.lower() in METHODS and method is not None:
            fix = Fix("unsafe", "bilinear gives other pixels", (edits.replace(source, method, '"bilinear"'),))
            yield Finding(
                call.node,
                f"XLA has no kernel for {name} resizing",
                'method="bilinear" or "nearest", or resize in the input pipeline',
                fix=fix,
            )
        elif antialias is not None and antialias.known and antialias.const is True:
            edit = edits.remove_keyword(source, call.node, "antialias")
            plain = Fix("unsafe", "without antialiasing", (edit,)) if edit else None
            yield Finding(
                call.node,
                "XLA has no kernel for resizing with antialias=True",
                "antialias=False, or resize in the input pipeline",
                fix=plain,
            )


RULE = Rule("XLA106", "resize-without-kernel", "error", _check, __doc__, fix="unsafe")
