"""shape-from-value

What: A size, axis or shape that a tensor's value decides: `tf.zeros([n])`, `tf.reshape(x, [n, -1])`, `tf.tile`, `tf.one_hot`
    depth, `tf.transpose(x, perm)`, `x[::n]`.

Why: XLA must know shapes while it compiles. On CPU and GPU TensorFlow bakes the value of an argument in, and compiles again
    for each value; on a TPU, and inside a loop everywhere, it fails: "must be a compile-time constant".

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, rows):
        return tf.one_hot(tf.reshape(x, [rows, 4]), tf.reduce_max(x) + 1)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, rows):
        return tf.one_hot(tf.reshape(x, [-1, 4]), 10)

Fix safety: unsafe: `[n, 4]` of a reshape becomes `[-1, 4]`, which is the same where `n` is right, and may pass where it was
    wrong. Of other sizes only the writer knows the largest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule, tpu_error
from hwal.lint.events import Call, Trace
from hwal.lint.families import SIZES
from hwal.lint.file import is_constant, keyword
from hwal.lint.values import depends, holds_tensor, in_loop

HELP = "a Python number, or a size from x.shape or tf.shape(x); pad to the largest one"


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    iterated = {id(loop.node.iter) for loop in trace.loops if isinstance(loop.node, ast.For)}
    for call in trace.calls:
        key = call.short or (call.name if call.name and call.name.startswith(("keras.ops.", "keras.random.")) else "")
        if key not in SIZES or id(call.node) in iterated:
            continue
        for position, keywords in SIZES[key]:
            value = call.argument(position, *keywords)
            if value is None or not depends(value) or not holds_tensor(value) or (key in UNBOUND and value.bounded):
                continue
            label = keywords[0]
            inside = in_loop(value)
            yield Finding(
                call.node,
                f"`{label}` of {key} depends on a tensor's value, and XLA must know it while it compiles",
                HELP,
                "error" if inside else None,
                _fix(trace, call) if key.endswith("reshape") else None,
            )
            break
    for part in trace.subscripts:
        for label, bound in part.bounds:
            if part.base.is_tensor and label == "step" and bound.is_tensor and bound.data:
                yield Finding(
                    part.node, "the step of a slice depends on a tensor's value, and XLA must know it while it compiles", HELP
                )
    for call in trace.calls:
        if call.method == "assign" and call.owner.what == "variable" and _shapeless(trace, call):
            why = "the variable's shape is not known, and compiled code cannot change it after its first value"
            yield Finding(call.node, why, "a shape of its own for the variable, or assign outside compiled code", "error")


def _fix(trace: Trace, call: Call) -> Fix | None:
    """`tf.reshape(x, [n, 4])`: the one size that is data follows from the others."""
    written, node = call.argument(1, "shape", "newshape"), call.argument_node(1, "shape", "newshape")
    if written is None or written.items is None or not isinstance(node, ast.List | ast.Tuple):
        return None
    data = [index for index, item in enumerate(written.items) if depends(item)]
    inferred = any(item.known and item.const == -1 for item in written.items)
    if len(data) != 1 or inferred or len(node.elts) != len(written.items):
        return None
    return Fix("unsafe", "the size follows from the others", (edits.replace(trace.function.module, node.elts[data[0]], "-1"),))


def _shapeless(trace: Trace, call: Call) -> bool:
    """Whether a global variable was made with `shape=tf.TensorShape([None])`, to be given values of any size."""
    owner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    made = trace.function.module.globals.get(owner.id) if isinstance(owner, ast.Name) else None
    shape = keyword(made, "shape") if isinstance(made, ast.Call) else None
    return shape is not None and any(is_constant(part, None) for part in ast.walk(shape) if isinstance(part, ast.Constant))


UNBOUND = ("dynamic_stitch",)


RULE = Rule("XLA202", "shape-from-value", tpu_error(), _check, __doc__, fix="unsafe")
