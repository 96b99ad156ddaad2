"""unknown-dimension

What: `None` in the shape of an `input_signature` of a function with `jit_compile=True`.

Why: The function is traced once, but XLA compiles it for each size it meets.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    def f(x):
        return x * 2.0

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([32, 4], tf.float32)])
    def f(x):
        return x * 2.0
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    for name, call, _ in file.named_calls:
        if name == "tensorflow.function" and is_constant(keyword(call, "jit_compile"), True):
            signature = keyword(call, "input_signature")
            for spec in ast.walk(signature) if signature is not None else ():
                shape = (spec.args[0] if spec.args else keyword(spec, "shape")) if isinstance(spec, ast.Call) else None
                if isinstance(shape, ast.List | ast.Tuple) and any(is_constant(dim, None) for dim in shape.elts):
                    yield Finding(
                        shape,
                        "an unknown dimension: XLA compiles again for each size it meets",
                        "a fixed size, or a few to which inputs are padded",
                    )


RULE = Rule("XLA304", "unknown-dimension", "info", _check, __doc__, scope="module")
