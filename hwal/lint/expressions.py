"""Expressions: the value of each, and the events that computing it causes."""

from __future__ import annotations

import ast
from collections.abc import Callable

from hwal.lint import shapes
from hwal.lint.calls import Calls
from hwal.lint.events import Combined, Subscript
from hwal.lint.frame import element
from hwal.lint.values import (
    DECIDED,
    LIST,
    NOTHING,
    NUMPY,
    PLAIN,
    PYTHON,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Value,
    all_given,
    constant,
    holds_tensor,
    join,
    tensor_like,
)

PLACEHOLDER = Value(TENSOR, data=True)
DTYPES = frozenset(
    [
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "half",
        "double",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "complex64",
        "complex128",
        "string",
        "variant",
        "resource",
        "qint8",
        "quint8",
    ]
)


TENSOR_ATTRIBUTES = frozenset({"values", "indices", "dense_shape", "flat_values", "row_splits", "T", "real", "imag"})


class Expressions(Calls):
    """The part of a frame that evaluates."""

    def evaluate(self, node: ast.expr | None) -> Value:
        if node is None:
            return NOTHING
        method = _METHODS.get(type(node))
        return method(self, node) if method else NOTHING

    # the kinds of expression

    def _constant(self, node: ast.Constant) -> Value:
        return constant(node.value)

    def _name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self.env:
            return self.env[name]
        if name in self.closure:
            return self.closure[name]
        if name in self.names:
            return self._imported(node)
        return self.interpreter.global_value(self.source, name)

    def _imported(self, node: ast.expr) -> Value:
        dotted = self.names.resolve(node)
        if dotted is None:
            return NOTHING
        last = dotted.rpartition(".")[2]
        if last in DTYPES and dotted.partition(".")[0] in ("tensorflow", "numpy", "torch", "keras"):
            return Value(PYTHON, what=f"dtype.{last}")
        if dotted.partition(".")[0] in ("tensorflow", "numpy", "keras", "torch"):
            return Value(PYTHON, what=dotted)
        return NOTHING

    def _attribute(self, node: ast.Attribute) -> Value:
        base = node.value
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name) and base.id in self.names and base.id not in self.env and base.id not in self.closure:
            return self._imported(node)
        owner = self.evaluate(node.value)
        name = node.attr
        if owner.what == "self":
            return self.interpreter.attribute_value(self.function, name)
        if owner.is_tensor:
            if name == "shape":
                return Value(PYTHON, what="shape", shape=owner.shape)
            if name in ("dtype", "name", "device", "graph", "op", "ndim", "trainable", "rank"):
                return PLAIN
            return tensor_like([owner]) if name in TENSOR_ATTRIBUTES else NOTHING
        if owner.what == TENSORS:
            return tensor_like([owner])
        return PLAIN if owner.kind == PYTHON else NOTHING

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        self.trace.combined.append(Combined(node, left, right, self.place()))
        return self.arithmetic(node.op, left, right)

    def arithmetic(self, op: ast.operator, left: Value, right: Value) -> Value:
        if isinstance(op, ast.Add) and (left.items is not None or right.items is not None):
            if left.items is not None and right.items is not None:
                return Value(PYTHON, items=left.items + right.items)
            if not (left.what == "single" or right.what == "single"):  # (x,) + outputs[1:]
                return NOTHING
        if left.is_tensor or right.is_tensor:
            tensor = left if left.is_tensor else right
            dtype = left.dtype or right.dtype
            shape = shapes.broadcast(shapes.of(left), shapes.of(right))
            kind = tensor.kind if left.kind == right.kind else TENSOR
            result = tensor_like([left, right], shape, dtype)
            return result._replace(kind=kind, what="single", given=all_given((left, right)))
        if left.kind == PYTHON and right.kind == PYTHON:
            whole = type(left.const) is int and type(right.const) is int
            if whole and isinstance(op, ast.Add | ast.Sub | ast.Mult):
                a, b = left.const, right.const
                return constant(a + b if isinstance(op, ast.Add) else a - b if isinstance(op, ast.Sub) else a * b)
            return PLAIN._replace(data=left.data or right.data)
        if NUMPY in (left.kind, right.kind) and UNKNOWN not in (left.kind, right.kind):
            return Value(NUMPY)
        return NOTHING

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            if value.what == DECIDED:
                return value._replace(const=not value.const)
            self.test(node, "not", value)
            return value._replace(dtype="bool", known=False) if value.is_tensor else PLAIN
        if isinstance(node.op, ast.USub) and value.known and type(value.const) in (int, float):
            return constant(-value.const)
        if isinstance(node.op, ast.Invert) and value.is_tensor:
            return value
        return value._replace(known=False, const=None)

    def _boolean(self, node: ast.BoolOp) -> Value:
        values = [self.evaluate(value) for value in node.values]
        for part, value in zip(node.values[:-1], values[:-1], strict=True):
            self.test(part, "and", value)
        decided = [value for value in values if value.what == DECIDED]
        last = isinstance(node.op, ast.Or)
        if found := next((value for value in decided if value.const is last), None):
            return found
        if decided and len(decided) == len(values):
            return decided[0]
        if isinstance(node.op, ast.And) and any(value.known and not value.const for value in values):
            return PLAIN
        if all(value.is_tensor for value in values) or (values[-1].is_tensor and values[-1].dtype == "bool"):
            return tensor_like(values, dtype="bool")
        return PLAIN if all(value.kind == PYTHON for value in values) else NOTHING

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.evaluate(node.left), *(self.evaluate(c) for c in node.comparators)]
        op = node.ops[0]
        if isinstance(op, ast.Is | ast.IsNot):
            return PLAIN
        if isinstance(op, ast.In | ast.NotIn):
            holder = values[1]
            if values[0].is_tensor and holder.items is not None and any(i.is_tensor or _number(i) for i in holder.items):
                self.test(node, "in", values[0])
            return PLAIN
        if any(v.known and (v.const is None or isinstance(v.const, str)) for v in values):
            return (
                PLAIN
                if any(v.known and v.const is None for v in values) or not any(v.is_tensor for v in values)
                else tensor_like(values)
            )
        if any(v.kind == TENSOR for v in values):
            shape = shapes.broadcast(shapes.of(values[0]), shapes.of(values[1])) if len(values) == 2 else None
            result = tensor_like(values, shape, "bool")._replace(what="single")
            if len(values) > 2:
                self.test(node, "compare", result)
            return result
        return PLAIN if all(v.kind == PYTHON for v in values) else NOTHING

    def _conditional(self, node: ast.IfExp) -> Value:
        value = self.evaluate(node.test)
        if value.what == DECIDED:
            return self.evaluate(node.body if value.const else node.orelse)
        self.test(node, "ifexp", value)
        if value.is_tensor:
            self.branches += 1
        result = join(self.evaluate(node.body), self.evaluate(node.orelse))
        if value.is_tensor:
            self.branches -= 1
            if result.kind != TENSOR:
                result = result._replace(kind=TENSOR if result.kind == PYTHON else result.kind)
            result = result._replace(data=True)
        return result

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items = []
        plain = True
        for item in node.elts:
            if isinstance(item, ast.Starred):
                inner = self.evaluate(item.value)
                self.iteration(item, "star", inner)
                plain = False
            else:
                items.append(self.evaluate(item))
        if not plain:
            return Value(PYTHON, data=any(i.data for i in items))
        return Value(PYTHON, items=tuple(items))

    def _dict(self, node: ast.Dict) -> Value:
        values = [self.evaluate(value) for value in node.values]
        for key in node.keys:
            self.evaluate(key)
        return Value(PYTHON, what="dict", data=any(v.data for v in values))

    def _string(self, node: ast.JoinedStr) -> Value:
        parts = [self.evaluate(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
        return PLAIN._replace(data=any(holds_tensor(part) for part in parts))

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.evaluate(node.value)
        return self.subscript(node, base, store=False)

    def subscript(self, node: ast.Subscript, base: Value, store: bool) -> Value:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        index, bounds = [], []
        for part in parts:
            if isinstance(part, ast.Slice):
                for label, bound in (("lower", part.lower), ("upper", part.upper), ("step", part.step)):
                    if bound is not None:
                        bounds.append((label, self.evaluate(bound)))
            else:
                index.append(self.evaluate(part))
        self.trace.subscripts.append(Subscript(node, base, index, bounds, self.place(), store))
        if base.items is not None and len(index) == 1 and index[0].known and isinstance(index[0].const, int):
            position = index[0].const
            return base.items[position] if -len(base.items) <= position < len(base.items) else NOTHING
        if base.is_tensor:
            if index and index[0].known and isinstance(index[0].const, str):
                return PLACEHOLDER if base.data else tensor_like([base])
            dynamic = any(label != "step" and bound.data for label, bound in bounds)
            mask = any(value.is_tensor and value.dtype == "bool" for value in index)
            plain = [part for part in parts if not isinstance(part, ast.Slice)]
            shape = shapes.indexed(base.shape, parts, dict(zip(plain, index, strict=True)))
            result = tensor_like([base, *index, *(bound for _, bound in bounds)], shape)
            single = base.what == "single" or mask or bool(bounds)
            return result._replace(
                bounded=result.bounded or dynamic or mask,
                loop=result.loop or mask,
                dtype=base.dtype,
                what="single" if single else None,
                given=base.given and not bounds and all_given(index),
            )
        if base.what == TENSORS:
            return base if bounds else tensor_like([base])
        if base.what == LIST:
            return base if bounds else element(base)
        if base.kind == PYTHON:
            return NOTHING if base.what == "dict" or base.items else PLAIN
        return NOTHING

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        saved = dict(self.env)
        for generator in node.generators:
            value = self.evaluate(generator.iter)
            self.iteration(generator, "comprehension", value)
            self.bind(generator.target, element(value))
            for condition in generator.ifs:
                self.test(condition, "comprehension", self.evaluate(condition))
        if isinstance(node, ast.DictComp):
            self.evaluate(node.key)
            result = self.evaluate(node.value)
        else:
            result = self.evaluate(node.elt)
        self.env = saved
        return Value(PYTHON, data=result.data, loop=result.loop, what=TENSORS if result.is_tensor else None)

    def _lambda(self, node: ast.Lambda) -> Value:
        function = self.source.by_node.get(node)
        return Value(PYTHON, what="function", const=function)

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.bind(node.target, value)
        return value

    def _starred(self, node: ast.Starred) -> Value:
        value = self.evaluate(node.value)
        self.iteration(node, "star", value)
        return Value(UNKNOWN, data=value.data)

    def _awaited(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    def _yielded(self, node: ast.Yield | ast.YieldFrom) -> Value:
        self.evaluate(node.value)
        return NOTHING


def _number(value: Value) -> bool:
    return value.known and isinstance(value.const, int | float)


_METHODS: dict[type, Callable[..., Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._boolean,
    ast.Compare: Expressions._compare,
    ast.IfExp: Expressions._conditional,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.Set: Expressions._sequence,
    ast.Dict: Expressions._dict,
    ast.JoinedStr: Expressions._string,
    ast.Subscript: Expressions._subscript,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Lambda: Expressions._lambda,
    ast.NamedExpr: Expressions._walrus,
    ast.Starred: Expressions._starred,
    ast.Await: Expressions._awaited,
    ast.Yield: Expressions._yielded,
    ast.YieldFrom: Expressions._yielded,
    ast.Call: Expressions._call,
}
