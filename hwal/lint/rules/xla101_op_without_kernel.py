"""op-without-kernel

What: A function whose operator XLA has no kernel for.

Why: TensorFlow's bridge compiles operator by operator. Where one has no XLA kernel, compilation fails with "Detected
    unsupported operations". The table comes from TensorFlow's own list of kernels and its own Python source.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.linalg.det(x)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return tf.reduce_prod(tf.linalg.diag_part(tf.linalg.qr(x).r))
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace
from hwal.lint.families import KERAS, KERAS_EAGER, REAL_ONLY, family, missing
from hwal.lint.values import depends


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        short = call.short

        if short and family(short) == "kernel":
            yield Finding(
                call.node,
                f"XLA has no kernel for {', '.join(missing(short))}, which tf.{short} runs",
                HELP.get(short, "compute it on the host, before or after the compiled step"),
            )

        elif short in REAL_ONLY and call.args and (call.args[0].dtype or "").startswith("complex"):
            yield Finding(
                call.node,
                f"XLA has no kernel for {REAL_ONLY[short]} of {call.args[0].dtype}, which tf.{short} runs",
                "real and imaginary part as one real matrix [[a, -b], [b, a]]",
            )

        elif call.name in KERAS and (call.name.startswith("keras.random.") or any(depends(value) for value in call.args)):
            yield Finding(
                call.node,
                f"XLA has no kernel for {KERAS[call.name]}, which {call.name} runs on TensorFlow",
                "compute it on the host, before or after the compiled step",
            )
        elif call.name in KERAS_EAGER and any(depends(value) for value in call.args):
            why = f"{call.name} asks a tensor for its value on TensorFlow, which raises while it is traced"
            yield Finding(call.node, why, "the same from comparisons, einsum or matmul")
        elif short in UNLESS:
            keyword, wanted, why, default = UNLESS[short]
            value = call.argument(99, keyword)
            given = default if value is None else value.const if value.known else wanted
            if given is not wanted:
                yield Finding(call.node, why, f"{keyword}={wanted}")


UNLESS: dict[str, tuple[str, bool, str, bool]] = {
    "linalg.tridiagonal_solve": (
        "partial_pivoting",
        False,
        "XLA solves tridiagonal systems without pivoting only",
        True,
    ),
    "linalg.lstsq": ("fast", True, "XLA has no kernel for least squares by a complete orthogonal decomposition", True),
}
"""Functions that have a kernel for one value of a flag: the flag, that value, why, and its default."""


HELP = {
    "linalg.det": "from tf.linalg.qr or tf.linalg.cholesky: the product of the diagonal",
    "linalg.slogdet": "from tf.linalg.cholesky: 2 * the sum of the logarithms of the diagonal",
    "linalg.lu": "tf.linalg.qr, or tf.linalg.solve",
    "random.gamma": "draw it in the input pipeline",
    "random.poisson": "draw it in the input pipeline",
    "nn.max_pool_with_argmax": "tf.nn.max_pool2d; the indices from tf.argmax over patches",
    "histogram_fixed_width": "tf.math.unsorted_segment_sum over the bin of each value",
    "image.combined_non_max_suppression": "tf.image.non_max_suppression_padded, class by class",
    "image.crop_and_resize": "tf.image.resize of slices, or a matrix of weights",
}


RULE = Rule("XLA101", "op-without-kernel", "error", _check, __doc__)
