"""bounded-dynamic-shape

What: `boolean_mask`, `x[mask]`, one-argument `where`, `unique`, `dynamic_partition`, `x[:n]` with a tensor `n`,
    `keras.ops.nonzero`.

Why: XLA pads the result to its largest size and carries the true one along: it compiles and equals eager, at the price of the
    padding. It fails when such a value meets a tensor of fixed size under a gradient.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(y, p):
        e = tf.abs(y - p)
        return tf.reduce_mean(tf.boolean_mask(e, e > 0.5))

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(y, p):
        e = tf.abs(y - p)
        m = tf.cast(e > 0.5, tf.float32)
        return tf.reduce_sum(m * e) / tf.maximum(tf.reduce_sum(m), 1.0)

Fix safety: unsafe: a mean over no element is 0 instead of NaN; none is offered where the mask may pick rows.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule, tpu_error
from hwal.lint.events import Place, Trace
from hwal.lint.shapes import BROADCASTING, KEEPING
from hwal.lint.source import Function
from hwal.lint.values import Value

NAMES = (
    "boolean_mask",
    "unique",
    "dynamic_partition",
    "sparse.from_dense",
    "nn.ctc_unique_labels",
    "image.non_max_suppression",
    "where",
)
KERAS = ("keras.ops.nonzero", "keras.ops.where", "keras.ops.unique", "keras.ops.argwhere")
HELP = "weights instead of a mask: sum(m * v) / maximum(sum(m), 1); tf.where(m, v, 0)"


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        if call.result.bounded and (call.short in NAMES or call.name in KERAS):
            if call.short == "where" and len(call.args) + len(call.kwargs) != 1:
                continue
            yield Finding(
                call.node,
                f"{call.method or call.short} has as many elements as the data says: XLA pads it to the largest number",
                HELP,
                fix=_fix(trace, call.node, _picked(call.node), call.args) if call.short == "boolean_mask" else None,
            )
        elif call.short in ("nn.top_k",) and len(call.args) > 1 and call.args[1].data and call.args[1].is_tensor:
            yield Finding(call.node, "top_k with a tensor k: XLA pads it to the largest number", "a Python number for k")
    for part in trace.subscripts:
        if part.base.is_tensor and not part.store:
            if any(value.is_tensor and value.dtype == "bool" for value in part.indices):
                what = "x[mask] has as many elements as the data says: XLA pads it to the largest number"
                fix = _fix(trace, part.node, (part.node.value, part.node.slice), [part.base, *part.indices])
                yield Finding(part.node, what, HELP, fix=fix)
            elif moving := [bound for label, bound in part.bounds if label != "step" and bound.is_tensor and bound.data]:
                sifted = any(bound.sifted for bound in moving)
                what = "a tensor's value" if not sifted else "a value computed from as many elements as the data says"
                yield Finding(
                    part.node,
                    f"a slice up to {what}: XLA {'cannot compile it' if sifted else 'pads it to the largest size'}",
                    "tf.slice with a constant size, or a mask",
                    tpu_error() if sifted else None,
                )
    for node, left, right, place in [*trace.combined, *_functions(trace)]:
        for bounded, other in ((left, right), (right, left)):
            if place.tape and bounded.is_tensor and bounded.bounded and _fixed(other) and _meets(bounded, other):
                yield Finding(
                    node,
                    "a tensor whose length the data decides meets one of fixed size under a gradient: shapes do not fit",
                    HELP,
                    "error" if bounded.loop else tpu_error(),
                )
                break


def _functions(trace: Trace) -> Iterator[tuple[ast.expr, Value, Value, Place]]:
    """`tf.subtract(a, b)` and its like, as operators."""
    for call in trace.calls:
        if call.short in BROADCASTING and len(call.args) > 1:
            yield call.node, call.args[0], call.args[1], call.place


def _fixed(value: Value) -> bool:
    return value.is_tensor and not value.bounded and value.data


def _meets(bounded: Value, other: Value) -> bool:
    """Whether a dimension that the data decides stands against one of another that is no 1."""
    if other.shape is None:
        return True
    if bounded.shape is None:  # rows are picked, the first dimension; a weight stands against features, the last
        return other.what != "variable" and not all(size == 1 for size in other.shape)
    moving = [place for place, size in enumerate(bounded.shape) if size is None] or [0]
    shift = len(other.shape) - len(bounded.shape)
    return any(place + shift >= 0 and other.shape[place + shift] != 1 for place in moving)


def _picked(call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The values and the mask of `tf.boolean_mask(v, m)`."""
    return (call.args[0], call.args[1]) if len(call.args) == 2 and not call.keywords else None


def _fix(trace: Trace, node: ast.expr, picked: tuple[ast.expr, ast.expr] | None, values: list[Value]) -> Fix | None:
    """A mean of picked values becomes a weighted mean, their sum one of zeros where the mask is not. None where the mask may
    pick rows: it must be of the values' own shape. `values`: what is picked from, and the mask."""
    source = trace.function.module
    parent = source.parents.get(node)
    tf = edits.module_name(source, "tensorflow")
    if tf is None or picked is None or not isinstance(parent, ast.Call) or len(parent.args) != 1 or parent.keywords:
        return None
    if not all(isinstance(n, ast.Name | ast.Attribute | ast.Call | ast.BinOp | ast.Compare) for n in picked):
        return None
    ranks = {None if value.shape is None else len(value.shape) for value in values[:2]}
    if (len(ranks) > 1 or None in ranks) and not _alike(trace.function, *picked):
        return None
    value, mask = (edits.text(source, part) for part in picked)
    reduced = source.names.resolve(parent.func)
    if reduced == "tensorflow.reduce_sum":
        new = f"{tf}.reduce_sum({tf}.where({mask}, {value}, 0))"
        return Fix("unsafe", "the mask must have the shape of the values", (edits.replace(source, parent, new),))
    if reduced == "tensorflow.reduce_mean":
        weight = f"{tf}.cast({mask}, ({value}).dtype)"
        new = f"({tf}.reduce_sum({weight} * ({value})) / {tf}.maximum({tf}.reduce_sum({weight}), 1))"
        return Fix("unsafe", "a mean over nothing is 0, not NaN", (edits.replace(source, parent, new),))
    return None


def _alike(function: Function, value: ast.expr, mask: ast.expr) -> bool:
    """Whether a mask has the shape of the values, both computed element by element: it is computed from all names that they
    are, so that its rank is no lower, and eager code takes no higher one."""
    stores: Counter[str] = Counter(parameter.arg for parameter in function.parameters)
    held: dict[str, ast.expr] = {}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stores[node.id] += 1
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            held[node.targets[0].id] = node.value
    if isinstance(mask, ast.Name) and stores[mask.id] == 1 and mask.id in held:
        mask = held[mask.id]
    names, others = _names(value, function), _names(mask, function)
    if not names or others is None:
        return False
    return names <= others and all(stores[name] == 1 for name in names)


def _names(node: ast.expr, function: Function) -> set[str] | None:
    """The names that an expression is computed from, element by element; None where that is not all it does."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Constant):
        return set()
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and not node.keywords:
        short = (function.module.names.resolve(node.func) or "").removeprefix("tensorflow.")
        parts = node.args if short in KEEPING | BROADCASTING and short != "cast" else []
    found = [_names(part, function) for part in parts]
    return {name for names in found for name in names or ()} if found and None not in found else None


RULE = Rule("XLA201", "bounded-dynamic-shape", "warning", _check, __doc__, fix="unsafe")
