"""branch-mismatch

What: The branches of a tensor `if` that do not define the same names with the same dtypes and structure, and a tensor loop
    whose variables change dtype or shape.

Why: `tf.cond` and `tf.while_loop` have one signature. AutoGraph raises "must also be initialized in the else branch", "has
    dtype float32 in the main branch, but dtype int32 in the else branch", "has shape (4,) before the loop, but shape (8,)
    after".

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        if tf.reduce_mean(x) > 0.5:
            y = x / 2.0
        return y

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        y = x
        if tf.reduce_mean(x) > 0.5:
            y = x / 2.0
        return y
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from hwal.lint import shapes
from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Test, Trace
from hwal.lint.source import Function
from hwal.lint.values import Value

NEUTRAL = {"tile": 1, "repeat": 1, "pad": 0}
"""Functions whose second argument, where it is nothing but these numbers, leaves a tensor as long as it was."""

GROWING = ("concat", "pad", "tile", "expand_dims", "repeat", "stack", "boolean_mask")


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.autograph:
        return
    for test in trace.tensor_tests("if"):
        if isinstance(test.node, ast.If):
            yield from _names(trace, test, test.node)
            yield from _returned(trace, test, test.node)
    yield from _floats(trace)
    yield from _loops(trace)
    yield from _while_loops(trace)


def _names(trace: Trace, test: Test, node: ast.If) -> Iterator[Finding]:
    """What the names of two branches that both go on are after them."""
    before, body, orelse = test.before or {}, test.body or {}, test.orelse or {}
    if leaving(node.body) or leaving(node.orelse):
        return
    for name in sorted({*body, *orelse}):
        a, b = body.get(name), orelse.get(name)
        if name in before and before[name] is a and before[name] is b:
            continue
        if a is not None and b is not None:
            found = _unlike(node, name, a, b, test.place.tape)
        elif name in before or (a or b or Value()).what == "function":
            continue
        else:
            what = f"`{name}` is set in one branch of a tensor `if` and not in the other"
            found = Finding(node, what, f"set `{name}` before the `if`, or in both branches")
        if found is not None and _read_after(trace, node, name):
            yield found


def _unlike(node: ast.If, name: str, a: Value, b: Value, tape: bool) -> Finding | None:
    """How a name's two values differ, where they may not."""
    if (x := dtype(a)) and (y := dtype(b)) and x != y:
        return Finding(node, f"`{name}` is {x} in one branch of a tensor `if` and {y} in the other", "tf.cast one of them")
    if _shapes_differ(a, b):
        shapes_ = f"has shape {_shape(a)} in one branch of a tensor `if` and {_shape(b)} in the other"
        return _sizes(node, f"`{name}` {shapes_}", a, b, tape)
    if _none(a) != _none(b) and (a.is_tensor or b.is_tensor):
        what = f"`{name}` is None in one branch of a tensor `if` and a tensor in the other"
        return Finding(node, what, "a tensor of the same shape in both, tf.zeros_like say")
    return None


def _sizes(node: ast.If, what: str, a: Value, b: Value, tape: bool) -> Finding:
    """Two shapes: XLA pads the smaller of one rank, and compiles no other; under a gradient it compiles neither (measured with
    TensorFlow 2.21 and libtpu's compiler)."""
    ranks = len(shapes.of(a) or ()), len(shapes.of(b) or ())
    if ranks[0] != ranks[1]:
        return Finding(node, f"{what}: XLA wants one rank", "tf.reshape or tf.broadcast_to one of them")
    if tape and (a.data or b.data):
        return Finding(node, f"{what}: a gradient through both does not fit", "tf.pad or tf.broadcast_to one of them")
    return Finding(node, f"{what}: XLA pads the smaller", "tf.pad or tf.broadcast_to one of them", "warning")


def _returned(trace: Trace, test: Test, node: ast.If) -> Iterator[Finding]:
    """A branch that returns, and what is returned where it is not taken."""
    last = node.body[-1]
    if not isinstance(last, ast.Return) or node.orelse:
        return
    mine = [value for statement, value, _ in trace.returns if statement is last]
    later = [value for statement, value, _ in trace.returns if statement.lineno > (node.end_lineno or 0)]  # type: ignore[attr-defined]
    if not later and last.value is not None and not test.place.loops and not _raises_after(trace, node):
        what = "a tensor `if` returns in one branch, and the function ends without a value in the other"
        yield Finding(node, what, "return a value in both")
    elif mine and len(later) == 1:
        a, b = mine[0], later[0]
        if (a.items is None) != (b.items is None) and (a.is_tensor or b.is_tensor):
            what = "the branches of a tensor `if` return different structures"
            yield Finding(node, what, "return the same number of tensors in both")
        elif (x := dtype(a)) and (y := dtype(b)) and x != y:
            yield Finding(node, f"one branch of a tensor `if` returns {x}, the other {y}", "tf.cast one of them")
        elif _shapes_differ(a, b):
            what = f"one branch of a tensor `if` returns the shape {_shape(a)}, the other {_shape(b)}"
            yield _sizes(node, what, a, b, test.place.tape)


def _floats(trace: Trace) -> Iterator[Finding]:
    """An integer that a loop carries, and that meets a float."""
    for one in trace.combined:
        for whole, other in ((one.left, one.right), (one.right, one.left)):
            if whole.loop and (whole.dtype or "").startswith("int") and _float(other):
                what = f"an {whole.dtype} of a tensor loop meets a float, which it cannot become"
                yield Finding(one.node, what, "start from a float: 0.0")
                break


def _loops(trace: Trace) -> Iterator[Finding]:
    """Variables of a compiled loop that change their dtype or grow."""
    for loop in trace.loops:
        if not loop.tensor:
            continue
        for name, before in loop.before.items():
            after = loop.after.get(name)
            if after is not None and (a := dtype(before)) and (b := dtype(after)) and a != b:
                what = f"`{name}` is {a} before the loop and {b} after one turn of it"
                yield Finding(loop.node, what, f"give it its dtype before the loop: tf.cast(…, tf.{b})")
        for statement in loop.node.body:
            if isinstance(statement, ast.Assign) and (grown := _grows(trace, statement)) and grown in loop.before:
                yield Finding(
                    loop.node,
                    f"`{grown}` changes its shape in the loop, and a compiled loop's variables have one",
                    "a tensor of the final size with tensor_scatter_nd_update, or tf.TensorArray(size=…)",
                )


def _while_loops(trace: Trace) -> Iterator[Finding]:
    """The same of `tf.while_loop`, whose body returns its variables; `shape_invariants` with open dimensions do not help."""
    for call in trace.calls:
        body = call.argument(1, "body") if call.short == "while_loop" else None
        function = body.const if body is not None and body.what == "function" else None
        if not isinstance(function, Function):
            continue
        names = [parameter.arg for parameter in function.parameters[1 if function.bound else 0 :]]
        stores, held = _assigned_once(function)
        for result in _results(function):
            returned = held.get(result.id, result) if isinstance(result, ast.Name) else result
            parts = returned.elts if isinstance(returned, ast.Tuple | ast.List) else [returned]
            for name, part in zip(names, parts, strict=False):
                own = isinstance(part, ast.Name) and part.id == name  # acc = tf.concat([acc, x], 0); return i + 1, acc
                made = held.get(part.id, part) if isinstance(part, ast.Name) else part
                if name in _longer(function, made) and stores[name] == own:
                    yield Finding(
                        call.node,
                        f"`{name}` changes its shape in the loop, and a compiled loop's variables have one",
                        "a tensor of the final size with tensor_scatter_nd_update, or tf.TensorArray(size=…)",
                    )


def _assigned_once(function: Function) -> tuple[Counter[str], dict[str, ast.expr]]:
    """How often each name is given a value in a function, and the value of those that one line of its body alone gives it."""
    names = (node for node in ast.walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    stores = Counter(node.id for node in names)
    body = [] if isinstance(function.node, ast.Lambda) else function.node.body
    lines = ((line.targets[0], line.value) for line in body if isinstance(line, ast.Assign))
    return stores, {target.id: value for target, value in lines if isinstance(target, ast.Name) and stores[target.id] == 1}


def _results(function: Function) -> Iterator[ast.expr]:
    if isinstance(function.node, ast.Lambda):
        yield function.node.body
        return
    for statement in function.node.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value


def leaving(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def dtype(value: Value) -> str | None:
    """The dtype of a tensor, or the one that a Python number gets."""
    if value.dtype and value.is_tensor:
        return value.dtype
    if value.known and isinstance(value.const, bool):
        return "bool"
    if value.known and isinstance(value.const, int | float):
        return "float32" if isinstance(value.const, float) else "int32"
    return None


def _shapes_differ(a: Value, b: Value) -> bool:
    return (a.is_tensor or b.is_tensor) and shapes.differ(shapes.of(a), shapes.of(b))


def _shape(value: Value) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in shapes.of(value) or ())})"


def _float(value: Value) -> bool:
    """A Python float, or a tensor of floats."""
    if value.is_tensor:
        return (value.dtype or "").startswith(("float", "bfloat"))
    return value.known and isinstance(value.const, float)


def _none(value: Value) -> bool:
    return value.known and value.const is None


def _raises_after(trace: Trace, node: ast.If) -> bool:
    return any(statement.lineno > node.lineno for statement, _ in trace.raises)


def _read_after(trace: Trace, node: ast.If, name: str) -> bool:
    """Whether a name is read after a branch before it is set again: on a later line, or anywhere in a loop around it."""
    end = node.end_lineno or node.lineno
    for inner in ast.walk(trace.function.node):
        if isinstance(inner, ast.Name) and inner.id == name and inner.lineno > end:
            return not (isinstance(inner.ctx, ast.Store)) or _same_statement(trace, inner)
    return False


def _same_statement(trace: Trace, node: ast.Name) -> bool:
    """Whether the statement that sets a name reads it too."""
    statement = trace.function.module.parents.get(node)
    return statement is not None and any(
        isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Load) for n in ast.walk(statement)
    )


def _grows(trace: Trace, node: ast.Assign) -> str | None:
    """The name that `x = tf.concat([x, …], 0)` makes longer."""
    target = node.targets[0]
    return target.id if isinstance(target, ast.Name) and target.id in _longer(trace.function, node.value) else None


def _longer(function: Function, call: ast.expr) -> set[str]:
    """The names of which `tf.concat([x, …], 0)` is a longer one."""
    name = function.module.names.resolve(call.func) if isinstance(call, ast.Call) else None
    if not isinstance(call, ast.Call) or not call.args or not name or name.removeprefix("tensorflow.") not in GROWING:
        return set()
    if (least := NEUTRAL.get(name.removeprefix("tensorflow."))) is not None and len(call.args) > 1:
        numbers = [node.value for node in ast.walk(call.args[1]) if isinstance(node, ast.Constant)]
        others = [node for node in ast.walk(call.args[1]) if isinstance(node, ast.Name | ast.Attribute | ast.Call)]
        if numbers and not others and all(number == least for number in numbers):
            return set()
    first = call.args[0]
    parts = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
    return {part.id for part in parts if isinstance(part, ast.Name)}


RULE = Rule("XLA005", "branch-mismatch", "error", _check, __doc__)
