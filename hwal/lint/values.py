"""Value: what the linter knows of a Python value while a function is traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

TENSOR = "tensor"
PYTHON = "python"
UNKNOWN = "unknown"
RAGGED = "ragged"
SPARSE = "sparse"
ARRAY = "tensorarray"
LAYER = "layer"
NUMPY = "numpy"

TENSORS = "list of tensors"
"""`what` of a Python list of tensors whose length is not known."""

LIST = "list"
"""`what` of any other Python list of unknown length; `const`, where it is a Value, is what each of its elements is."""

ARGUMENT = "argument"
"""`what` of an argument that may be a structure of tensors rather than one."""

EAGER = "eager"
"""`what` of a tensor that a file makes outside traced code: it has its numbers."""

DECIDED = "decided"
"""`what` of a condition that has one outcome in a trace: whether a tensor is sparse."""

Shape = tuple[int | None, ...]


class Value(NamedTuple):
    """`data`: depends on numbers that only a run knows. `bounded`: its shape does, within a bound that XLA knows; `sifted`: it
    was computed from such a one. `given`: an argument of which nothing says that it is a tensor, or what Python's operators
    make of such ones, so that it may be a number of Python's. `loop`: it changes in a loop that XLA compiles, or comes from an
    operator that XLA cannot work out while it compiles, so that it is no constant on any device. `const`: the Python value
    itself, where `known`. `items`: of a tuple or list. `shape`: None where nothing is known."""

    kind: str = UNKNOWN
    data: bool = False
    bounded: bool = False
    loop: bool = False
    shape: Shape | None = None
    dtype: str | None = None
    known: bool = False
    const: Any = None
    items: tuple[Value, ...] | None = None
    what: str | None = None
    sifted: bool = False
    given: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind in (TENSOR, RAGGED, SPARSE)


NOTHING = Value()
PLAIN = Value(PYTHON)


def constant(value: object) -> Value:
    return Value(PYTHON, known=True, const=value)


def tensor_like(values: list[Value], shape: Shape | None = None, dtype: str | None = None) -> Value:
    """A tensor computed from others: it depends on what they depend on."""
    data = bounded = loop = sifted = False
    for value in values:
        data = data or value.data
        bounded = bounded or value.bounded
        loop = loop or value.loop
        sifted = sifted or value.sifted or value.bounded
        if value.items:
            inner = tensor_like(list(value.items))
            data, bounded, loop = data or inner.data, bounded or inner.bounded, loop or inner.loop
            sifted = sifted or inner.sifted
    return Value(TENSOR, data, bounded, loop, shape, dtype, sifted=sifted)


def all_given(values: Iterable[Value]) -> bool:
    """Whether what Python's operators make of values may be a number of Python's: each of them may be one."""
    return all(value.given or not holds_tensor(value) for value in values)


def depends(value: Value) -> bool:
    """Whether a value, or a part of it, depends on numbers that only a run knows."""
    return value.data or bool(value.items and any(depends(item) for item in value.items))


def in_loop(value: Value) -> bool:
    return value.loop or bool(value.items and any(in_loop(item) for item in value.items))


def holds_tensor(value: Value) -> bool:
    """Whether a value is a tensor, or a list or tuple with one in it."""
    if value.what == LIST and isinstance(value.const, Value):
        return holds_tensor(value.const)
    return value.is_tensor or value.what == TENSORS or bool(value.items and any(holds_tensor(item) for item in value.items))


def join(a: Value, b: Value) -> Value:
    """What holds of a value that is either of two."""
    if a == b:
        return a
    for empty, filled in ((a, b), (b, a)):  # a list before and after a loop that appends to it
        if empty.items == () and empty.kind == PYTHON and filled.what in (TENSORS, LIST):
            return filled
    kind = a.kind if a.kind == b.kind else UNKNOWN
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True))
    return Value(
        kind,
        a.data or b.data,
        a.bounded or b.bounded,
        a.loop or b.loop,
        a.shape if a.shape == b.shape else None,
        a.dtype if a.dtype == b.dtype else None,
        items=items,
        what=a.what if a.what == b.what else None,
        sifted=a.sifted or b.sifted,
        given=a.given and b.given,
    )
