"""Frame: one run through one function's body: its names, and where in the flow it stands."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hwal.lint.events import Iteration, Place, Test, Trace
from hwal.lint.source import Function
from hwal.lint.values import ARGUMENT, LIST, NOTHING, PLAIN, PYTHON, TENSOR, TENSORS, Value, join

if TYPE_CHECKING:
    from hwal.lint.interpreter import Interpreter


class Frame(ABC):
    """What all parts of one function's interpretation share: Calls, Expressions and Statements build on one another. `env`: its
    names; `closure`: those around it."""

    def __init__(
        self, interpreter: Interpreter, function: Function, trace: Trace, env: dict[str, Value], closure: Mapping[str, Value]
    ) -> None:
        self.interpreter = interpreter
        self.function = function
        self.source = function.module
        self.names = function.module.names
        self.trace = trace
        self.env = env
        self.closure = closure
        self.loops: list[str] = []
        self.branches = 0
        self.tape = (trace.context.gradient and 1) or 0
        self._place = Place(tape=bool(self.tape))

    def place(self) -> Place:
        place = self._place
        if len(place.loops) != len(self.loops) or place.branches != self.branches or place.tape != bool(self.tape):
            place = self._place = Place(tuple(self.loops), self.branches, bool(self.tape))
        return place

    @abstractmethod
    def evaluate(self, node: ast.expr | None) -> Value:
        """The value of an expression."""

    @abstractmethod
    def bind(self, target: ast.expr, value: Value) -> None:
        """Gives a name, or the names of a tuple, a value."""

    def test(self, node: ast.AST, kind: str, value: Value) -> None:
        if value.what != ARGUMENT:  # `if inputs:` of a list
            self.trace.tests.append(Test(node, kind, value, self.place()))

    def iteration(self, node: ast.AST, how: str, value: Value) -> None:
        if value.what and value.what.startswith("iter:"):
            how, value = value.what[5:], value._replace(what=None, kind=TENSOR)
        if value.what != ARGUMENT:
            self.trace.iterations.append(Iteration(node, how, value, self.place()))


def element(value: Value) -> Value:
    """What iterating over a value yields."""
    if value.what and value.what.startswith("iter:"):
        inner = Value(TENSOR, *value[1:4])
        return Value(PYTHON, items=(PLAIN if value.what == "iter:enumerate" else inner, inner))
    if value.what == TENSORS:
        return Value(TENSOR, value.data, value.bounded, value.loop)
    if value.what == LIST and isinstance(value.const, Value):
        return value.const
    if value.items:
        result = value.items[0]
        for item in value.items[1:]:
            result = join(result, item)
        return result
    if value.is_tensor:
        return Value(TENSOR, value.data, dtype=value.dtype, given=value.given)
    return PLAIN if value.what in ("range", "shape") else NOTHING
