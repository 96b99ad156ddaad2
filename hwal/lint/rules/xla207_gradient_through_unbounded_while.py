"""gradient-through-unbounded-while

What: A gradient through a `while` over tensors, or through `tf.while_loop` without `maximum_iterations`.

Why: The gradient needs the values of every turn. XLA must know how many there can be: "XLA compilation requires a fixed
    tensor list size. Set the max number of elements."

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 2.0), (0, x))[1]
        return tape.gradient(y, x)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 2.0), (0, x), maximum_iterations=5)[1]
        return tape.gradient(y, x)

Fix safety: none yet: only the writer knows how many turns there can be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace

HELP = "maximum_iterations=…, or for i in tf.range(constant) with tf.where"


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    graph = any(call.short == "gradients" for call in trace.calls)
    for loop in trace.loops:
        if loop.tensor and isinstance(loop.node, ast.While) and (loop.place.tape or graph) and not _options(trace):
            yield Finding(
                loop.node, "a gradient through a `while` over tensors: XLA must know how many turns there can be", HELP
            )
    for call in trace.calls:
        if call.short == "while_loop" and (call.place.tape or graph) and call.argument(5, "maximum_iterations") is None:
            yield Finding(
                call.node,
                "a gradient through tf.while_loop without maximum_iterations: XLA must know how many turns there can be",
                HELP,
            )
        elif call.name == "keras.ops.while_loop" and call.place.tape and call.argument(3, "maximum_iterations") is None:
            yield Finding(call.node, "a gradient through keras.ops.while_loop without maximum_iterations", HELP)


def _options(trace: Trace) -> bool:
    return any(
        call.short == "autograph.experimental.set_loop_options" and "maximum_iterations" in call.kwargs for call in trace.calls
    )


RULE = Rule("XLA207", "gradient-through-unbounded-while", "error", _check, __doc__)
