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

Fix safety: unsafe: where a constant bounds a counter, `i < 5`, it bounds the turns as well; a loop that begins below 0 or
    counts in smaller steps is cut short.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Edit, Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.source import Source

HELP = "maximum_iterations=…, or for i in tf.range(constant) with tf.where"
POSITION = {"tensorflow.while_loop": 5, "keras.ops.while_loop": 3}
"""Functions that loop -> where `maximum_iterations` stands among their arguments."""


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    source = trace.function.module
    graph = any(call.short == "gradients" for call in trace.calls)
    for loop in trace.loops:
        if loop.tensor and isinstance(loop.node, ast.While) and (loop.place.tape or graph) and not _options(trace):
            why = "a gradient through a `while` over tensors: XLA must know how many turns there can be"
            yield Finding(loop.node, why, HELP, fix=_option(source, loop.node))
    for call in trace.calls:
        position = POSITION.get(call.name or "")
        if position and (call.place.tape or graph) and call.argument(position, "maximum_iterations") is None:
            why = f"a gradient through {call.method or call.short} without maximum_iterations: XLA must know how many turns"
            yield Finding(call.node, f"{why} there can be", HELP, fix=_keyword(source, call.node))


def _options(trace: Trace) -> bool:
    return any(
        call.short == "autograph.experimental.set_loop_options" and "maximum_iterations" in call.kwargs for call in trace.calls
    )


def _bound(test: ast.expr | None) -> int | None:
    """The turns that `i < 5`, or a part of an `and` like it, allows a counter from 0."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return next((bound for part in test.values if (bound := _bound(part)) is not None), None)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Name):
        limit = test.comparators[0]
        if isinstance(limit, ast.Constant) and type(limit.value) is int and isinstance(test.ops[0], ast.Lt | ast.LtE):
            return limit.value + isinstance(test.ops[0], ast.LtE)
    return None


def _keyword(source: Source, call: ast.Call) -> Fix | None:
    """`maximum_iterations=5` where the condition is `lambda i, …: i < 5`."""
    condition = call.args[0] if call.args else None
    bound = _bound(condition.body) if isinstance(condition, ast.Lambda) else None
    if bound is None:
        return None
    return Fix("unsafe", "the counter's limit", (edits.add_keyword(source, call, f"maximum_iterations={bound}"),))


def _option(source: Source, node: ast.While) -> Fix | None:
    """The loop option that says the same of a `while i < 5`."""
    tf = edits.module_name(source, "tensorflow")
    bound = _bound(node.test)
    if bound is None or tf is None or node.body[0].lineno == node.lineno:
        return None
    line, column, _, _ = edits.span(source, node.body[0])
    new = f"{tf}.autograph.experimental.set_loop_options(maximum_iterations={bound})\n{' ' * column}"
    return Fix("unsafe", "the counter's limit", (Edit(line, column, line, column, new),))


RULE = Rule("XLA207", "gradient-through-unbounded-while", "error", _check, __doc__, fix="unsafe")
