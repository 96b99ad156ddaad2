"""Shapes: the static shape of what TensorFlow's common functions return, as far as it can be told. None: not known."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from hwal.lint.values import PYTHON, TENSOR, Shape, Value

KEEPING = frozenset(
    {
        "abs", "square", "sqrt", "exp", "negative", "sign", "tanh", "sigmoid", "cast", "identity", "stop_gradient", "sin",
        "cos", "zeros_like", "ones_like", "cumsum", "reverse", "roll", "sort", "clip_by_value", "clip_by_norm", "logical_not",
        "round", "nn.relu", "nn.gelu", "nn.softmax", "nn.log_softmax", "nn.sigmoid", "nn.tanh", "nn.dropout", "math.log",
        "math.log1p", "math.rsqrt", "math.sigmoid", "math.l2_normalize", "math.is_nan", "math.is_inf", "math.is_finite",
        "math.softplus", "math.erf", "floor", "math.floor", "math.ceil", "convert_to_tensor",
}
)  # fmt: skip
"""Functions whose result has the shape of what they are given."""

BROADCASTING = frozenset(
    {
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "math.squared_difference", "math.divide_no_nan",
        "equal", "not_equal", "greater", "less", "greater_equal", "less_equal", "logical_and", "logical_or", "math.floordiv",
        "math.floormod", "math.subtract", "math.multiply", "math.add",
}
)  # fmt: skip
"""Functions of two tensors that are stretched to fit one another."""

REDUCING = ("reduce_", "math.reduce_")
SCALARS = frozenset({"size", "rank"})
FILLED = frozenset({"zeros", "ones", "fill", "random.normal", "random.uniform", "random.truncated_normal"})


def of_call(short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Shape | None:
    """The shape of what `tf.<short>` returns."""
    first = args[0] if args else None
    if first is None:
        return None
    if short in KEEPING:
        return of(first)
    if short in BROADCASTING and len(args) > 1:
        return broadcast(of(first), of(args[1]))
    if short.startswith(REDUCING) or short == "norm":
        keep = kwargs.get("keepdims")
        axis = kwargs.get("axis", args[1] if len(args) > 1 and short != "norm" else None)
        return reduced(of(first), axis, keep is not None and not (keep.known and keep.const is False))
    if short in SCALARS:
        return ()
    if short in FILLED or (short == "reshape" and len(args) > 1):
        return written(args[1] if short == "reshape" else first)
    if short == "constant":
        return () if first.known and isinstance(first.const, int | float) else of_literal(first)
    if short == "boolean_mask" and len(args) > 1 and first.shape is not None and args[1].shape is not None:
        return (None, *first.shape[len(args[1].shape) :])
    if short == "matmul" and len(args) == 2 and not kwargs:
        a, b = of(first), of(args[1])
        return (a[0], b[1]) if a is not None and b is not None and len(a) == len(b) == 2 else None
    return None


def of(value: Value) -> Shape | None:
    """The shape of a value: a Python number has that of a scalar."""
    if value.kind == TENSOR:
        return value.shape
    return () if value.known and isinstance(value.const, int | float) else None


def indexed(shape: Shape | None, parts: Sequence[ast.expr], values: Mapping[ast.expr, Value]) -> Shape | None:
    """The shape of `x[parts]`. `values`: those of the parts that are no slices."""
    if shape is None:
        return None
    taken = sum(1 for part in parts if not isinstance(part, ast.Constant) or (part.value is not None and part.value is not ...))
    rest, result = list(shape), []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is ...:
            count = len(shape) - taken
            result += rest[:count]
            rest = rest[count:]
        elif _new_axis(values.get(part)):
            result.append(1)
        elif not rest:
            return None
        elif isinstance(part, ast.Slice):
            result.append(_cut(rest.pop(0), part))
        elif _scalar(values.get(part)):
            rest.pop(0)
        else:
            return None
    return (*result, *rest)


def _cut(size: int | None, part: ast.Slice) -> int | None:
    """What a slice leaves of a dimension."""
    bounds = (part.lower, part.upper, part.step)
    if all(bound is None for bound in bounds):
        return size
    try:
        given = [None if bound is None else ast.literal_eval(bound) for bound in bounds]
    except ValueError:
        return None
    whole = size is not None and all(bound is None or type(bound) is int for bound in given) and given[2] != 0
    return len(range(*slice(*given).indices(size))) if whole and size is not None else None


def _new_axis(value: Value | None) -> bool:
    return value is not None and ((value.known and value.const is None) or value.what == "tensorflow.newaxis")


def _scalar(value: Value | None) -> bool:
    """Whether an index is one number."""
    if value is None:
        return False
    return value.shape == () if value.kind == TENSOR else value.kind == PYTHON and value.items is None and value.what is None


def broadcast(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of two tensors that are stretched to fit one another."""
    if a is None or b is None:
        return None
    if len(a) < len(b):
        a, b = b, a
    b = (1,) * (len(a) - len(b)) + b
    return tuple(x if y == 1 else y if x == 1 or x == y else None for x, y in zip(a, b, strict=True))


def reduced(shape: Shape | None, axis: Value | None, keep: bool) -> Shape | None:
    """What is left of a shape after a reduction; without an axis, of any shape."""
    if axis is None or (axis.known and axis.const is None):
        if not keep:
            return ()
        return None if shape is None else (1,) * len(shape)
    numbers = [item.const for item in (axis.items or (axis,)) if item.known and isinstance(item.const, int)]
    if shape is None or len(numbers) != len(axis.items or (axis,)):
        return None
    gone = {number % len(shape) for number in numbers} if shape else set()
    return tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone)


def written(value: Value) -> Shape | None:
    """The shape that `[2, n]` or `4` writes."""
    if value.items is not None:
        known = (item.const if item.known and isinstance(item.const, int) else None for item in value.items)
        return tuple(None if n is not None and n < 0 else n for n in known)
    return (value.const,) if value.known and isinstance(value.const, int) and value.const >= 0 else None


def of_literal(value: Value) -> Shape | None:
    """The shape of a nested list of numbers."""
    if value.items is None:
        return () if value.known and isinstance(value.const, int | float) else None
    inner = [of_literal(item) for item in value.items]
    if not inner or inner[0] is None or any(shape != inner[0] for shape in inner):
        return None
    return (len(inner), *inner[0])


def differ(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes are known, and are not the same."""
    if a is None or b is None:
        return False
    return len(a) != len(b) or any(x is not None and y is not None and x != y for x, y in zip(a, b, strict=True))


def either(a: Shape | None, b: Shape | None) -> Shape | None:
    """What two shapes of one rank have in common."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))
