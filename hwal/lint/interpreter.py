"""Interpreter: traces every root and what it calls, as TensorFlow would, with values that know little but enough."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from hwal.lint.arguments import root_arguments
from hwal.lint.context import GRADIENT, Contexts, keras_kind
from hwal.lint.eager import dims, literal, tensor_made
from hwal.lint.events import Trace
from hwal.lint.frame import Frame
from hwal.lint.project import Project, enclosing_class
from hwal.lint.source import Class, Function, Source
from hwal.lint.statements import Statements
from hwal.lint.values import EAGER, LAYER, LIST, NOTHING, NUMPY, PLAIN, TENSOR, Shape, Value, constant

DEPTH = 8
VARIANTS = 16
"""How deep calls are followed, and with how many different sets of arguments one function is traced."""

WEIGHT_METHODS = ("add_weight", "add_variable", "add_state")


class Interpreter:
    """The traces of a project's roots."""

    def __init__(self, project: Project, contexts: Contexts) -> None:
        self.project = project
        self.contexts = contexts
        self.traces: list[Trace] = []
        self._known: dict[tuple[object, ...], Value] = {}
        self._variants: dict[Function, int] = {}
        self._depth = 0
        self._attributes: dict[tuple[int, str], Value] = {}
        self._globals: dict[tuple[int, str], Value] = {}

    def run(self) -> list[Trace]:
        for function, context in self.contexts.roots.items():
            args = root_arguments(function, context, self.contexts.sites.get(function, ()))
            autograph = self.contexts.autograph_of(function, context.autograph)
            self._trace(function, args, Trace(function, context._replace(autograph=autograph)), {})
        return self.traces

    def _trace(self, function: Function, args: dict[str, Value], trace: Trace, closure: Mapping[str, Value]) -> Value:
        self.traces.append(trace)
        trace.parameters.update(args)
        frame = Statements(self, function, trace, dict(args), closure)
        frame.pending = []
        self._depth += 1
        node = function.node
        if isinstance(node, ast.Lambda):
            result = frame.evaluate(node.body)
            trace.returns.append((node.body, result, frame.place()))
        else:
            frame.run(node.body)
            result = frame.returned if frame.returned is not None else PLAIN
        for inner in frame.pending:  # the gradient function of a custom_gradient, which AutoGraph leaves alone
            count = len(inner.parameters)
            frame.call_function(inner, [Value(TENSOR, data=True)] * count, {}, inner.node, False)
        self._depth -= 1
        return result

    def call(
        self, frame: Frame, target: Function, args: list[Value], kwargs: Mapping[str, Value], autograph: bool | None
    ) -> Value:
        """Traces a function that a traced function calls."""
        if self._depth >= DEPTH:
            return NOTHING
        context = frame.trace.context
        inner_autograph = self.contexts.autograph_of(target, context.autograph if autograph is None else autograph)
        values = self._bind(target, args, kwargs)
        place = frame.place()
        compiled = context.compiled
        key = (
            target,
            inner_autograph,
            place.tape,
            compiled,
            bool(place.loops),
            tuple(sorted((n, _coarse(v)) for n, v in values.items())),
        )
        if key in self._known:
            return self._known[key]
        if self._variants.get(target, 0) >= VARIANTS:
            return NOTHING
        self._variants[target] = self._variants.get(target, 0) + 1
        self._known[key] = NOTHING  # one that calls itself
        inner = Trace(target, context._replace(autograph=inner_autograph, gradient=place.tape))
        closure = {**frame.closure, **frame.env} if target.outer is frame.function else frame.closure if target.outer else {}
        result = self._trace(target, values, inner, closure)
        if result.items and any(target.module.names.resolve(d) == GRADIENT for d in target.decorators):
            result = result.items[0]  # (value, gradient function)
        self._known[key] = result
        return result

    def _bind(self, target: Function, args: list[Value], kwargs: Mapping[str, Value]) -> dict[str, Value]:
        """Parameter name -> value, of a call."""
        parameters = [p.arg for p in target.parameters]
        values: dict[str, Value] = {}
        if target.bound and parameters:
            values[parameters[0]] = Value(what="self")
            parameters = parameters[1:]
        values |= dict(zip(parameters, args, strict=False))
        names = {*parameters, *(p.arg for p in target.node.args.kwonlyargs)}
        values |= {name: value for name, value in kwargs.items() if name in names}
        for name, default in target.defaults().items():
            if name not in values:
                values[name] = constant(default.value) if isinstance(default, ast.Constant) else NOTHING
        for extra in (target.node.args.vararg, target.node.args.kwarg):
            if extra:
                values[extra.arg] = NOTHING
        for name in names:
            values.setdefault(name, NOTHING)
        return values

    def global_value(self, source: Source, name: str) -> Value:
        """What a module's own name is: only what can be told from its one assignment."""
        key = (id(source), name)
        if key not in self._globals:
            node = source.globals.get(name)
            if name in source.top:
                self._globals[key] = Value("python", what="function", const=source.top[name])
            else:
                self._globals[key] = self._static(source, node) if node is not None else NOTHING
        return self._globals[key]

    def _static(self, source: Source, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return constant(node.value)
        if isinstance(node, ast.Call):
            name = source.names.resolve(node.func)
            if name == "tensorflow.Variable":
                made = tensor_made(node.args[0], source) if node.args else None
                shape = made.shape if made else literal(node.args[0])[0] if node.args else None
                written = next((k.value for k in node.keywords if k.arg == "shape"), None)
                shape = shape if written is None else dims(written)
                return Value(TENSOR, data=True, what="variable", shape=None if _spread(node) else shape)
            if name in (
                "tensorflow.constant",
                "tensorflow.convert_to_tensor",
                "tensorflow.range",
                "tensorflow.zeros",
                "tensorflow.ones",
            ):
                return Value(TENSOR, what=EAGER)
            if name and name.startswith(
                ("keras.layers.", "keras.Model", "keras.Sequential", "keras.losses.", "keras.applications.")
            ):
                return Value(LAYER)
            target = self.project.called(node.func, None, source)
            if target is not None and not isinstance(target, Function):
                return Value(LAYER) if keras_kind(self.project, target) else Value("python", what="instance", const=target)
            if name and name.startswith("numpy.") and tensor_made(node, source) is not None:
                return Value(NUMPY)
            return PLAIN if name and name.startswith(("tensorflow.", "numpy.")) else NOTHING
        if isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set):
            return Value("python", what="global")
        if isinstance(node, ast.ListComp):
            return Value("python", what=LIST)
        return PLAIN if isinstance(node, ast.BinOp | ast.UnaryOp | ast.JoinedStr) else NOTHING

    def attribute_value(self, function: Function, name: str) -> Value:
        """What `self.name` is, from the assignment in its class."""
        class_ = enclosing_class(function)
        if class_ is None:
            return NOTHING
        key = (id(class_), name)
        if key not in self._attributes:
            self._attributes[key] = NOTHING
            self._attributes[key] = self._attribute(function, name)
        return self._attributes[key]

    def _attribute(self, function: Function, name: str) -> Value:
        class_ = enclosing_class(function)
        node = class_.attributes.get(name) if class_ else None
        if class_ is not None and node is None and (method := class_.methods.get(name)) and not method.decorators:
            return Value("python", what="function", const=method)  # tf.while_loop(…, self.body, …)
        if class_ is None or node is None:
            return NOTHING
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WEIGHT_METHODS:
            return Value(TENSOR, data=True, what="variable", shape=_weight_shape(node))
        value = self._static(class_.module, node)
        if value is NOTHING and isinstance(node, ast.Name) and (init := class_.methods.get("__init__")):
            return self._setting(class_, init, node.id)
        return value

    def _setting(self, class_: Class, init: Function, name: str) -> Value:
        """What an argument of `__init__` is: Python's where its default, its annotation or a call in sight says so."""
        parameters = init.parameters
        given = [init.defaults().get(name)]
        for call in self.contexts.made.get(class_, ()):
            passed = dict(zip((p.arg for p in parameters[1:]), call.args, strict=False))
            given.append(passed.get(name) or next((k.value for k in call.keywords if k.arg == name), None))
        constants = [node.value for node in given if isinstance(node, ast.Constant) and node.value is not None]
        annotation = next((p.annotation for p in [*parameters, *init.node.args.kwonlyargs] if p.arg == name), None)
        if any(isinstance(value, bool) for value in constants) or (
            isinstance(annotation, ast.Name) and annotation.id == "bool"
        ):
            return PLAIN._replace(dtype="bool")
        return PLAIN if constants else NOTHING


def _weight_shape(call: ast.Call) -> Shape | None:
    """The shape that `self.add_weight` is given, first or after a name; that of a number where it is given none. None
    where it may be among arguments that are spread."""
    if _spread(call):
        return None
    written = next((k.value for k in call.keywords if k.arg == "shape"), None)
    written = written or next((arg for arg in call.args[:2] if not isinstance(arg, ast.Constant)), None)
    return dims(written) if written is not None else ()


def _spread(call: ast.Call) -> bool:
    """Whether a call spreads arguments that cannot be told: `f(*args, **options)`."""
    return any(keyword.arg is None for keyword in call.keywords) or any(isinstance(arg, ast.Starred) for arg in call.args)


def _coarse(value: Value) -> tuple[object, ...]:
    return (
        value.kind,
        value.data,
        value.bounded,
        value.loop,
        value.dtype,
        value.what,
        repr(value.const) if value.known else id(value.const),
    )
