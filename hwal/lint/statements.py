"""Statements: what a function's body does to its names, in order; branches are joined, loops run once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from hwal.lint import shapes
from hwal.lint.context import GRADIENT
from hwal.lint.events import Loop, Store, Test
from hwal.lint.expressions import Expressions
from hwal.lint.frame import element
from hwal.lint.source import Function
from hwal.lint.values import ARGUMENT, DECIDED, NOTHING, PLAIN, PYTHON, TENSOR, Value, join

TAPES = ("tensorflow.GradientTape",)


class Statements(Expressions):
    """A frame: one run through one function's body."""

    returned: Value | None = None
    left: ast.stmt | None = None
    """A condition that always leaves its block: what stands below it is not traced."""

    def run(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            method = _METHODS.get(type(statement))
            if method:
                method(self, statement)
            if statement is self.left:
                return

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.trace.stores.append(Store(node, target, value, self.place()))
            self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.evaluate(node.value)
            self.trace.stores.append(Store(node, node.target, value, self.place()))
            self.bind(node.target, value)

    def _augmented(self, node: ast.AugAssign) -> None:
        before = self.evaluate(node.target) if not isinstance(node.target, ast.Subscript) else NOTHING
        value = self.arithmetic(node.op, before, self.evaluate(node.value))
        self.trace.stores.append(Store(node, node.target, value, self.place()))
        self.bind(node.target, value)

    def bind(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            if value.items is not None and len(value.items) == len(target.elts):
                for part, item in zip(target.elts, value.items, strict=True):
                    self.bind(part, item)
                return
            if value.is_tensor and (value.what == "single" or value.shape is not None):
                self.iteration(target, "unpack", value)
            each = element(value)
            if value.is_tensor:
                each = each._replace(bounded=value.bounded, loop=value.loop)
            for part in target.elts:
                self.bind(part.value if isinstance(part, ast.Starred) else part, each)
        elif isinstance(target, ast.Subscript):
            self.subscript(target, self.evaluate(target.value), store=True)
        elif isinstance(target, ast.Attribute):
            self.evaluate(target.value)

    def _expression(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def _return(self, node: ast.Return) -> None:
        value = self.evaluate(node.value) if node.value is not None else PLAIN
        self.trace.returns.append((node, value, self.place()))
        self.returned = value if self.returned is None else join(self.returned, value)

    def _if(self, node: ast.If) -> None:
        value = self.evaluate(node.test)
        if value.what == DECIDED:
            taken = node.body if value.const else node.orelse
            self.run(taken)
            self.left = node if ends(taken) else self.left
            return
        tensor = value.is_tensor and value.what != ARGUMENT
        before = dict(self.env)
        place = self.place()
        self.branches += tensor
        self.env.update(dict.fromkeys(narrowed(node.test), NOTHING))
        self.run(node.body)
        body = self.env
        self.env = dict(before)
        self.run(node.orelse)
        orelse = self.env
        self.branches -= tensor
        if value.what != ARGUMENT:
            self.trace.tests.append(Test(node, "if", value, place, before, body, orelse))
        if ends(node.body):
            self.env = orelse
        elif ends(node.orelse):
            self.env = body
        else:
            self.env = merged(body, orelse, tensor)

    def _while(self, node: ast.While) -> None:
        value = self.evaluate(node.test)
        tensor = value.is_tensor and self.trace.autograph
        before = dict(self.env)
        place = self.place()
        if tensor:
            self._widen(node)
        self._body(node, tensor)
        self.trace.tests.append(Test(node, "while", value, place))
        self.trace.loops.append(Loop(node, tensor, value, place, before, self.env))
        self.env = merged(before, self.env, tensor, keep=True)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        value = self.evaluate(node.iter)
        before = dict(self.env)
        place = self.place()
        self.iteration(node.iter, "for", value)
        tensor = value.is_tensor and self.trace.autograph and value.what != ARGUMENT
        if tensor:
            self._widen(node)
        each = element(value)
        if tensor:
            each = each._replace(data=True, loop=True, dtype="int32" if value.what == "range" else each.dtype)
        self.bind(node.target, each)
        self._body(node, tensor)
        self.trace.loops.append(Loop(node, tensor, value, place, before, self.env))
        self.env = merged(before, self.env, tensor, keep=True)

    def _body(self, node: ast.For | ast.AsyncFor | ast.While, tensor: bool) -> None:
        self.loops.append("tensor" if tensor else "python")
        self.run(node.body)
        self.loops.pop()
        self.run(node.orelse)

    def _widen(self, node: ast.AST) -> None:
        """Names that a compiled loop assigns are no constants inside it."""
        for name in assigned(node):
            if name in self.env:
                value = self.env[name]
                number = value.kind == PYTHON and value.known and isinstance(value.const, int | float)
                if value.kind == TENSOR or number:
                    dtype = value.dtype or (
                        "float32" if number and isinstance(value.const, float) else "int32" if number else None
                    )
                    self.env[name] = Value(TENSOR, True, value.bounded, True, value.shape, dtype, what=value.what)

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        tapes = 0
        for item in node.items:
            value = self.evaluate(item.context_expr)
            call = item.context_expr
            if isinstance(call, ast.Call) and self.names.resolve(call.func) in TAPES:
                tapes += 1
                value = Value(PYTHON, what="tape")
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value if tapes else NOTHING)
        self.tape += tapes
        self.run(node.body)
        self.tape -= tapes

    def _try(self, node: ast.Try) -> None:
        before = dict(self.env)
        self.run(node.body)
        self.run(node.orelse)
        after = self.env
        for handler in node.handlers:
            self.env = dict(before)
            if handler.name:
                self.env[handler.name] = PLAIN
            self.run(handler.body)
            if not ends(handler.body):
                after = merged(after, self.env, False)
        self.env = after
        self.run(node.finalbody)

    def _match(self, node: ast.Match) -> None:
        self.evaluate(node.subject)
        before = dict(self.env)
        after = before
        for case in node.cases:
            self.env = dict(before)
            self.run(case.body)
            after = merged(after, self.env, False)
        self.env = after

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self.source.by_node.get(node)
        self.env[node.name] = Value(PYTHON, what="function", const=function)
        if function is not None and any(self.names.resolve(d) == GRADIENT for d in self.function.decorators):
            self.pending.append(function)

    pending: list[Function]

    def _assert(self, node: ast.Assert) -> None:
        self.test(node, "assert", self.evaluate(node.test))

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.evaluate(node.exc)
        self.trace.raises.append((node, self.place()))

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.env.pop(target.id, None)

    def _class(self, node: ast.ClassDef) -> None:
        self.env[node.name] = PLAIN


def ends(body: list[ast.stmt]) -> bool:
    """Whether a block leaves its function or loop at its end."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return ends(last.body) and ends(last.orelse)
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def narrowed(test: ast.expr) -> set[str]:
    """The names that a test says are no tensors: `isinstance(x, list)`, `is_numpy_array(x)`, `callable(x)`."""
    found = set()
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        if isinstance(part, ast.Call) and part.args and isinstance(part.args[0], ast.Name):
            word = (
                part.func.id
                if isinstance(part.func, ast.Name)
                else part.func.attr
                if isinstance(part.func, ast.Attribute)
                else ""
            )
            kind = ast.unparse(part.args[1]) if len(part.args) > 1 else ""
            if (word == "isinstance" and "ensor" not in kind) or word in ("callable", "hasattr") or _predicate(word):
                found.add(part.args[0].id)
    return found


def _predicate(word: str) -> bool:
    return word.startswith(("is_", "_is_")) and "tensor" not in word and word not in ("is_nan", "is_inf", "is_finite")


def merged(a: dict[str, Value], b: dict[str, Value], tensor: bool, keep: bool = False) -> dict[str, Value]:
    """The names after one of two ways. `tensor`: a tensor decides which, so that what differs becomes a tensor that depends on
    data. `keep`: the second way may have run any number of times."""
    result = dict(a)
    for name, value in b.items():
        other = result.get(name)
        if other is None:
            result[name] = value
        elif other is not value:
            joined = join(other, value)
            if tensor and other != value:
                if {other.kind, value.kind} <= {TENSOR, PYTHON} and (joined.kind == TENSOR or _numbers(other, value)):
                    joined = joined._replace(kind=TENSOR)
                joined = joined._replace(data=True)
                if shapes.differ(other.shape, value.shape) and (shape := shapes.either(other.shape, value.shape)):
                    joined = joined._replace(shape=shape, bounded=True, loop=True)  # XLA pads the smaller
            result[name] = joined
    return result


def _numbers(a: Value, b: Value) -> bool:
    return all(
        v.kind == TENSOR or (v.known and isinstance(v.const, int | float) and not isinstance(v.const, bool)) for v in (a, b)
    )


def assigned(node: ast.AST) -> set[str]:
    """The names that a loop's body assigns."""
    found = set()
    for statement in node.body:  # type: ignore[attr-defined]
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found.add(inner.id)
    return found


_METHODS: dict[type, Callable[..., None]] = {
    ast.Assign: Statements._assign,
    ast.AnnAssign: Statements._annotated,
    ast.AugAssign: Statements._augmented,
    ast.Expr: Statements._expression,
    ast.Return: Statements._return,
    ast.If: Statements._if,
    ast.While: Statements._while,
    ast.For: Statements._for,
    ast.AsyncFor: Statements._for,
    ast.With: Statements._with,
    ast.AsyncWith: Statements._with,
    ast.Try: Statements._try,
    ast.TryStar: Statements._try,
    ast.Match: Statements._match,
    ast.FunctionDef: Statements._define,
    ast.AsyncFunctionDef: Statements._define,
    ast.ClassDef: Statements._class,
    ast.Assert: Statements._assert,
    ast.Raise: Statements._raise,
    ast.Delete: Statements._delete,
}
