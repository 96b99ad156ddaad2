"""loop-limit-from-tensor

What: `for i in tf.range(n)` or `for i in range(n)` where `n` is a tensor's value.

Why: `tf.range` needs its limit while XLA compiles. On CPU and GPU the argument's value is baked in, and each new value
    compiles again; on a TPU it fails. A `while` with a counter compiles once for all values.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, n):
        for i in tf.range(n):
            x = x + 1.0
        return x

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, n):
        i = 0
        while i < n:
            x = x + 1.0
            i += 1
        return x

Fix safety: unsafe: a gradient through the loop needs the limit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Edit, Finding, Fix, Rule, tpu_error
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    source = trace.function.module
    for loop in trace.loops:
        node = loop.node
        if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call) or not loop.value.is_tensor:
            continue
        plain = isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range"
        if (plain or source.names.resolve(node.iter.func) == "tensorflow.range") and loop.value.data and trace.autograph:
            yield Finding(
                node,
                "a loop's limit that is a tensor's value: XLA must know it while it compiles",
                "a `while` with a counter, or a constant limit",
                "error" if loop.value.loop else None,
                _fix(trace, node) if not loop.place.tape else None,
            )


def _fix(trace: Trace, node: ast.For) -> Fix | None:
    """A counter and a `while`, where the loop has one limit and no `continue`."""
    source = trace.function.module
    call = node.iter
    if (
        not isinstance(call, ast.Call)
        or len(call.args) != 1
        or call.keywords
        or node.orelse
        or not isinstance(node.target, ast.Name)
    ):
        return None
    if not isinstance(call.args[0], ast.Name) or any(isinstance(inner, ast.Continue | ast.Break) for inner in ast.walk(node)):
        return None
    name, limit = node.target.id, call.args[0].id
    if any(
        isinstance(inner, ast.Name) and inner.id in (name, limit) and isinstance(inner.ctx, ast.Store)
        for s in node.body
        for inner in ast.walk(s)
    ):
        return None
    if (
        any(isinstance(inner, ast.Name) and inner.id == name for s in node.body for inner in ast.walk(s))
        or node.body[0].lineno == node.lineno
    ):
        return None  # its dtype would matter
    line, start, _, _ = edits.span(source, node)
    _, _, end_line, end = edits.span(source, call)
    _, _, last_line, last = edits.span(source, node)
    body_indent = " " * edits.span(source, node.body[0])[1]
    head = f"{name} = 0\n{' ' * start}while {name} < {limit}"
    return Fix(
        "unsafe",
        "a counter",
        (Edit(line, start, end_line, end, head), Edit(last_line, last, last_line, last, f"\n{body_indent}{name} += 1")),
    )


RULE = Rule("XLA208", "loop-limit-from-tensor", tpu_error(), _check, __doc__, fix="unsafe")
