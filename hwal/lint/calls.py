"""Calls: what a call in a traced function means, what it returns, and which functions are traced with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from hwal.lint import semantics
from hwal.lint.context import keras_kind
from hwal.lint.events import Call
from hwal.lint.frame import Frame, element
from hwal.lint.source import Class, Function
from hwal.lint.values import (
    ARGUMENT,
    ARRAY,
    LAYER,
    LIST,
    NOTHING,
    NUMPY,
    PLAIN,
    PYTHON,
    TENSOR,
    TENSORS,
    Value,
    holds_tensor,
    join,
    tensor_like,
)

BODY_TAKERS = frozenset({"cond", "while_loop", "case", "switch_case", "map_fn", "scan", "foldl", "foldr", "vectorized_map"})
LIST_TAKERS = frozenset(
    {
        "add_n", "identity_n", "shape_n", "tuple", "ragged.constant", "experimental.numpy.hstack", "experimental.numpy.vstack",
        "experimental.numpy.dstack",
}
)  # fmt: skip
"""Functions that want a Python list of tensors, and iterate over one tensor that they are given in its place."""
PLAIN_BACKEND = ("shape", "int_shape", "ndim", "is_tensor", "dtype", "floatx", "backend", "standardize_dtype")
TRUTH_BUILTINS = {"bool": "bool", "any": "any", "all": "any", "max": "max", "min": "max", "sorted": "sorted", "filter": "any"}
ITERATING = {
    "list": "list",
    "tuple": "list",
    "sum": "sum",
    "enumerate": "enumerate",
    "zip": "zip",
    "set": "list",
    "iter": "list",
    "sorted": "list",
}

KERAS_BODY_TAKERS = frozenset({"cond", "while_loop", "fori_loop", "scan", "map", "vectorized_map", "switch"})
KERAS_LIST_TAKERS = frozenset({"stack", "hstack", "vstack", "dstack"})


def _one(value: Value) -> bool:
    """Whether a value is one tensor for certain, and no list of them."""
    return value.what == "single" or value.shape is not None


def _turning(value: Value) -> Value:
    """What a variable of tf.while_loop is inside it."""
    if value.kind == TENSOR:
        return value._replace(data=True, loop=True, known=False, const=None)
    number = value.known and isinstance(value.const, int | float)
    return Value(TENSOR, data=True, loop=True, what=ARGUMENT) if number or value.kind != ARRAY else value


class Calls(Frame):
    """The part of a frame that calls."""

    def _call(self, node: ast.Call) -> Value:
        func = node.func
        owner = NOTHING
        method = None
        name = None
        if isinstance(func, ast.Attribute):
            method = func.attr
            name = None if self._shadowed(func) else self.names.resolve(func)
            if name is None:
                owner = self.evaluate(func.value)
        elif isinstance(func, ast.Name):
            if func.id in self.env or func.id in self.closure:
                name = self._named(self.evaluate(func))
            else:
                name = self.names.resolve(func)
        else:
            owner = self.evaluate(func)
        args = [self.evaluate(arg) for arg in node.args]
        kwargs = {k.arg or "**": self.evaluate(k.value) for k in node.keywords}
        result = self._result(node, name, method, owner, args, kwargs)
        self.trace.calls.append(Call(node, name, method, owner, args, kwargs, result, self.place()))
        return result

    @staticmethod
    def _named(held: Value) -> str | None:
        """The function of a framework that a name of a frame holds: `act = tf.nn.relu`."""
        known = held.kind == PYTHON and held.what is not None and held.what.startswith(("tensorflow.", "keras."))
        return held.what if known else None

    def _shadowed(self, node: ast.Attribute) -> bool:
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            base = base.value
        return isinstance(base, ast.Name) and (base.id in self.env or base.id in self.closure)

    def _target(self, func: ast.expr, name: str | None, method: str | None, owner: Value) -> Function | Class | None:
        """The function or class of the project that is called, None where it is none."""
        project = self.interpreter.project
        if name is not None and name.startswith(("tensorflow.", "keras.", "numpy.", "torch.")):
            own = name.startswith("keras.") and project.has_keras
            return project.called(func, self.function, self.source) if own else None
        held = self.evaluate(func) if isinstance(func, ast.Name) else owner
        if held.what == "function" and not isinstance(func, ast.Attribute):
            found: Function | Class | None = held.const
            return found
        if isinstance(func, ast.Name) and (func.id in self.env or func.id in self.closure) and held.what != "instance":
            return None  # an argument, or a name of its own
        if held.what in ("instance", "bound") and isinstance(held.const, Class):
            return project.method(held.const, method or "call") or project.method(held.const, "__call__")
        return project.called(func, self.function, self.source)

    def _result(
        self, node: ast.Call, name: str | None, method: str | None, owner: Value, args: list[Value], kwargs: Mapping[str, Value]
    ) -> Value:
        func = node.func
        target = self._target(func, name, method, owner)
        if isinstance(target, Class):
            kind = keras_kind(self.interpreter.project, target)
            return Value(LAYER) if kind else Value(PYTHON, what="instance", const=target)
        if isinstance(target, Function):
            return self.call_function(target, args, kwargs, node)
        package, _, short = (name or "").partition(".")
        if package == "tensorflow":
            return self._tensorflow(node, short, args, kwargs)
        if package == "keras":
            return self._keras(node, short, method, args, kwargs)
        if name == "operator.index":
            return PLAIN
        if package == "numpy":
            return Value(NUMPY, data=any(a.data for a in args))
        if isinstance(func, ast.Name) and name is None and func.id not in self.env:
            return self._builtin(node, func.id, args, kwargs)
        return self._object(func, method, owner, args, kwargs, node)

    def _tensorflow(self, node: ast.Call, short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        if short in BODY_TAKERS:
            return self._body_taker(short, args, kwargs)
        if short in LIST_TAKERS and args and args[0].is_tensor and _one(args[0]):
            self.iteration(node, "list", args[0])
        if short in ("py_function", "numpy_function", "compat.v1.py_func"):
            return Value(TENSOR, data=True)
        return semantics.tensorflow_call(short, args, kwargs)

    def _keras(self, node: ast.Call, short: str, method: str | None, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        module, _, last = short.rpartition(".")
        if module == "ops":
            if last in KERAS_BODY_TAKERS:
                return self._body_taker(last, args, kwargs)
            if last in KERAS_LIST_TAKERS and args and args[0].is_tensor and _one(args[0]):
                self.iteration(node, "list", args[0])
            return semantics.keras_ops_call(last, args, kwargs)
        if module == "backend":
            if last in PLAIN_BACKEND:
                return PLAIN
            return tensor_like(args) if any(holds_tensor(a) for a in args) else NOTHING
        if module in ("losses", "metrics", "activations") and method and method[:1].islower():
            return tensor_like([*args, *kwargs.values()])._replace(data=True)
        return Value(LAYER) if short.startswith(("layers.", "losses.", "Model", "Sequential")) else PLAIN

    def _object(
        self, func: ast.expr, method: str | None, owner: Value, args: list[Value], kwargs: Mapping[str, Value], node: ast.Call
    ) -> Value:
        """A call of what a name, an attribute or another call holds: a layer, the model itself, a list's method."""
        tensors = any(holds_tensor(a) for a in args)
        called = self.evaluate(func) if isinstance(func, ast.Name) else NOTHING
        if (isinstance(func, ast.Call) and owner.kind == LAYER) or called.kind == LAYER:
            return tensor_like(args)._replace(data=True)
        if tensors and (called.what == "self" or (owner.what == "self" and method in ("__call__", "call", "compute_loss"))):
            return Value(TENSOR, data=True)  # self(x)
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and owner.what == "self":
            held = self.interpreter.attribute_value(self.function, func.attr)
            if held.kind == LAYER:
                return tensor_like(args)._replace(data=True, dtype=None)
            return Value(TENSOR, data=True) if func.attr == "compute_loss" else NOTHING
        if method == "gradient":
            return NOTHING
        if method in ("append", "insert") and isinstance(func, ast.Attribute):
            self._append(func.value, owner, args[-1:])
        if method == "sort" and owner.kind == PYTHON:
            self._ordered(node, "sorted", [owner], kwargs.get("key"))
        return semantics.method_call(method, owner, args) if method else NOTHING

    def _builtin(self, node: ast.Call, name: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        if (kind := TRUTH_BUILTINS.get(name)) and args:
            self._ordered(node, kind, args, kwargs.get("key"))
        walked = args[:1] if name == "enumerate" else args
        if name in ("enumerate", "zip") and args and all(a.is_tensor and a.what != ARGUMENT for a in walked):
            return Value(PYTHON, *tensor_like(args)[1:4], what=f"iter:{name}")
        if name in ITERATING and name != "zip" and args and args[0].is_tensor:
            self.iteration(node, ITERATING[name], args[0])
        if name in ("map", "filter"):
            return self._mapped(node, name, args)
        if name == "range" and not self.trace.autograph and (limit := next((a for a in args if a.is_tensor), None)):
            self.iteration(node, "range", limit)
        result = semantics.builtin_call(name, args, self.trace.autograph)
        if name == "isinstance" and args and args[0].given and self.interpreter.project.sparse:
            return PLAIN  # an argument that is sparse as often as dense
        return NOTHING if result is None else result

    def _append(self, node: ast.expr, owner: Value, added: list[Value]) -> None:
        """What a list holds after `append`: tensors, or lists of them, as many as loops have made."""
        plain = owner.kind == PYTHON and (owner.items is not None or owner.what in (TENSORS, LIST))
        if not plain or not added or not isinstance(node, ast.Name) or node.id not in self.env:
            return
        each = added[0] if owner.items == () else join(element(owner), added[0])
        if each.is_tensor:
            held = Value(PYTHON, each.data, each.bounded, each.loop, what=TENSORS)
        else:
            held = Value(PYTHON, each.data, loop=each.loop, what=LIST, const=each)
        self.env[node.id] = held

    def _ordered(self, node: ast.Call, kind: str, args: list[Value], key: Value | None) -> None:
        """Python asks the parts of a list for their truth, or compares them, or what `key` makes of each."""
        if kind == "bool":
            parts = list(args[0].items or args[:1])
        elif len(args) == 1 and args[0].what == TENSORS:
            parts = [element(args[0])]
        else:
            parts = [item for value in args for item in (value.items or (value,))]
            parts = parts if len(parts) > 1 or args[0].items else []
        if key is not None and key.what == "function" and isinstance(key.const, Function) and parts:
            parts = [self.call_function(key.const, [part], {}, node) for part in parts]
        if found := next((part for part in parts if part.is_tensor), None):
            self.test(node, kind, found)

    def _mapped(self, node: ast.Call, name: str, args: list[Value]) -> Value:
        """`map(f, t)`: Python walks through each argument, and calls a function of the project with what it finds."""
        for walked in args[1:]:
            if walked.is_tensor:
                self.iteration(node, name, walked)
        if args and args[0].what == "function" and isinstance(args[0].const, Function):
            result = self.call_function(args[0].const, [element(value) for value in args[1:]], {}, node)
            if name == "map":
                return Value(PYTHON, data=result.data, loop=result.loop, what=TENSORS if result.is_tensor else None)
        return NOTHING

    def call_function(
        self, target: Function, args: list[Value], kwargs: Mapping[str, Value], node: ast.AST, autograph: bool | None = None
    ) -> Value:
        return self.interpreter.call(self, target, args, kwargs, autograph)

    def _body_taker(self, short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
        """`tf.cond`, `tf.while_loop`, `tf.map_fn` and the like trace the functions that they are given."""
        looping = short not in ("cond", "case", "switch_case", "switch")
        result = NOTHING
        if looping:
            self.loops.append("tensor")
        else:
            self.branches += 1
        carried = kwargs.get("loop_vars", args[2] if len(args) > 2 else NOTHING).items if short == "while_loop" else None
        for value in [*args, *kwargs.values()]:
            for item in value.items or (value,):
                if item.what == "function" and isinstance(item.const, Function):
                    given = [Value(TENSOR, data=True, loop=looping, what=ARGUMENT)] * (
                        len(item.const.parameters) - item.const.bound
                    )
                    if carried is not None and len(carried) == len(given):
                        given = [_turning(one) for one in carried]
                    inner = self.call_function(item.const, given, {}, item.const.node)
                    result = inner if result is NOTHING else join(result, inner)
        if looping:
            self.loops.pop()
        else:
            self.branches -= 1
        return Value(TENSOR, data=True, bounded=result.bounded) if result.kind in (TENSOR, PYTHON) else NOTHING
