"""Eager: what an expression outside traced code makes: the tensors and arrays that a script's own calls pass."""

from __future__ import annotations

import ast

from hwal.lint.source import Source
from hwal.lint.values import TENSOR, Shape, Value

FILLED = frozenset(
    {
        "tensorflow.ones", "tensorflow.zeros", "tensorflow.fill", "tensorflow.random.normal", "tensorflow.random.uniform",
        "tensorflow.random.truncated_normal", "tensorflow.random.stateless_normal", "tensorflow.random.stateless_uniform",
        "numpy.ones", "numpy.zeros", "numpy.full", "numpy.empty", "numpy.random.normal", "numpy.random.uniform",
        "numpy.random.random", "keras.random.normal", "keras.random.uniform", "keras.ops.ones", "keras.ops.zeros",
}
)  # fmt: skip
"""Functions that are given a shape, first or as `shape=` or `size=`."""

SHAPE_LAST = frozenset({"numpy.random.normal", "numpy.random.uniform"})
LITERAL = frozenset({"tensorflow.constant", "tensorflow.convert_to_tensor", "numpy.array", "numpy.asarray", "keras.ops.array"})
SIZES = frozenset({"numpy.random.rand", "numpy.random.randn"})
OTHERS = frozenset({"tensorflow.eye", "tensorflow.range", "tensorflow.linspace", "numpy.arange", "numpy.eye", "numpy.linspace"})
DEPTH = 3


def tensor_made(node: ast.expr, source: Source, depth: int = 0) -> Value | None:
    """The tensor or array that an expression at a file's top makes, None where it makes none that can be told."""
    if depth > DEPTH:
        return None
    if isinstance(node, ast.Name):
        made = source.globals.get(node.id)
        return tensor_made(made, source, depth + 1) if made is not None else None
    if not isinstance(node, ast.Call):
        return None
    name = source.names.resolve(node.func)
    given = {k.arg: k.value for k in node.keywords if k.arg}
    if name is None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("astype", "reshape"):
            owner = tensor_made(node.func.value, source, depth + 1)
            if owner is not None and node.func.attr == "astype" and node.args:
                return owner._replace(dtype=dtype_of(node.args[0], source))
            return owner._replace(shape=None) if owner is not None else None
        return None
    dtype = dtype_of(given.get("dtype"), source)
    wide = name.startswith("numpy.")
    if name in LITERAL and node.args:
        shape, kind = literal(node.args[0])
        dtype = dtype or (dtype_of(node.args[1], source) if len(node.args) > 1 else None)
        default = "float64" if wide and kind == "float32" else "int64" if wide and kind == "int32" else kind
        return Value(TENSOR, data=True, shape=shape, dtype=dtype or default)
    if name in FILLED:
        place = given.get("shape") or given.get("size")
        if place is None and node.args and name not in SHAPE_LAST:
            place = node.args[0]
        position = {"numpy.ones": 1, "numpy.zeros": 1, "tensorflow.ones": 1, "tensorflow.zeros": 1}.get(name, 99)
        dtype = dtype or (dtype_of(node.args[position], source) if position < len(node.args) else None)
        default = None if name.endswith((".fill", ".full")) else "float64" if wide else "float32"
        return Value(TENSOR, data=True, shape=dims(place), dtype=dtype or default)
    if name in SIZES:
        return Value(TENSOR, data=True, shape=tuple(_dim(arg) for arg in node.args), dtype="float64")
    if name in OTHERS:
        return Value(TENSOR, data=True, dtype=dtype)
    if name == "tensorflow.cast" and len(node.args) > 1 and (inner := tensor_made(node.args[0], source, depth + 1)):
        return inner._replace(dtype=dtype_of(node.args[1], source))
    return None


def literal(node: ast.expr) -> tuple[Shape | None, str | None]:
    """The shape and dtype of a literal number or nested list."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None, None
    shape: list[int] = []
    while isinstance(value, list | tuple):
        shape.append(len(value))
        if not value:
            return tuple(shape), None
        value = value[0]
    kinds: dict[type, str] = {bool: "bool", int: "int32", float: "float32", complex: "complex128", str: "string"}
    return tuple(shape), kinds.get(type(value))


def dims(node: ast.expr | None) -> Shape | None:
    """The shape that `[2, n]` or `4` writes; None for a dimension that is no number."""
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_dim(item) for item in node.elts)
    return (node.value,) if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _dim(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def dtype_of(node: ast.expr | None, source: Source) -> str | None:
    """`float32` for `tf.float32`, `"float32"`, `np.float32`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    name = source.names.resolve(node) if node is not None else None
    return name.rpartition(".")[2] if name and name.partition(".")[0] in ("tensorflow", "numpy") else None
