"""Trace and its events: what happens while one function is traced, with what is known of each value. Rules read these."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hwal.lint.context import Context
from hwal.lint.source import Function
from hwal.lint.values import NOTHING, Value


class Place(NamedTuple):
    """Where in the flow something stands. `loops`: the kinds of the loops around it, outermost first (`tensor`, `python`);
    `branches`: how many `if` over tensors are around it; `tape`: whether a gradient is taken through it."""

    loops: tuple[str, ...] = ()
    branches: int = 0
    tape: bool = False


class Call(NamedTuple):
    """One call. `name`: canonical and dotted, None where no import is behind it; `method`: the attribute's name; `owner`: what
    the method is called on."""

    node: ast.Call
    name: str | None
    method: str | None
    owner: Value
    args: list[Value]
    kwargs: Mapping[str, Value]
    result: Value
    place: Place

    @property
    def short(self) -> str:
        """The name without `tensorflow.`, empty for anything else."""
        return self.name[11:] if self.name and self.name.startswith("tensorflow.") else ""

    def argument(self, position: int, *keywords: str) -> Value | None:
        for keyword in keywords:
            if keyword in self.kwargs:
                return self.kwargs[keyword]
        return self.args[position] if 0 <= position < len(self.args) else None

    def argument_node(self, position: int, *keywords: str) -> ast.expr | None:
        for keyword in self.node.keywords:
            if keyword.arg in keywords:
                return keyword.value
        return self.node.args[position] if 0 <= position < len(self.node.args) else None


class Test(NamedTuple):
    """A value that Python asks for its truth. `kind`: if, while, ifexp, assert, and, not, compare, in, comprehension, bool,
    any, max, sorted. For `if`: the names before it and after each branch."""

    node: ast.AST
    kind: str
    value: Value
    place: Place
    before: Mapping[str, Value] | None = None
    body: Mapping[str, Value] | None = None
    orelse: Mapping[str, Value] | None = None


class Loop(NamedTuple):
    """A `for` or `while` statement that XLA sees as a loop (`tensor`) or that Python unrolls."""

    node: ast.For | ast.AsyncFor | ast.While
    tensor: bool
    value: Value
    place: Place
    before: Mapping[str, Value]
    after: Mapping[str, Value]


class Iteration(NamedTuple):
    """Python's own iteration over a value. `how`: for, comprehension, enumerate, zip, list, sum, unpack, star …"""

    node: ast.AST
    how: str
    value: Value
    place: Place


class Subscript(NamedTuple):
    """`base[indices]`; `bounds`: the values in its slices; `store`: whether it is assigned to."""

    node: ast.Subscript
    base: Value
    indices: list[Value]
    bounds: list[tuple[str, Value]]
    place: Place
    store: bool = False


class Store(NamedTuple):
    """An assignment, with the place of it: to a name, an attribute or an item."""

    node: ast.AST
    target: ast.expr
    value: Value
    place: Place


class Combined(NamedTuple):
    """An operator between two values."""

    node: ast.expr
    left: Value
    right: Value
    place: Place


@dataclass(frozen=True, eq=False)
class Trace:
    """One function traced once, with certain arguments."""

    function: Function
    context: Context
    calls: list[Call] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    subscripts: list[Subscript] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    combined: list[Combined] = field(default_factory=list)
    raises: list[tuple[ast.Raise, Place]] = field(default_factory=list)
    returns: list[tuple[ast.AST, Value, Place]] = field(default_factory=list)
    parameters: dict[str, Value] = field(default_factory=dict)

    @property
    def autograph(self) -> bool:
        return self.context.autograph

    def tensor_tests(self, *kinds: str) -> list[Test]:
        return [test for test in self.tests if test.value.is_tensor and (not kinds or test.kind in kinds)]


UNKNOWN_OWNER = NOTHING
