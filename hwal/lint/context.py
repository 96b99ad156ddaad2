"""Contexts: which functions TensorFlow traces, and whether AutoGraph converts them. Everything else follows from this.

A function is a root of tracing when it is decorated with or given to `tf.function`, is a method that Keras calls while it
traces (`call`, `train_step`, losses, metrics), or is handed to `compile`, `Lambda`, or `strategy.run`. What a root calls is
traced with it, which is the interpreter's business. A function that nobody in the given files calls, that takes tensors and
computes with them, is assumed to be compiled by someone else: a model's library has no `tf.function` of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from hwal.lint.assumed import Assumptions
from hwal.lint.pipeline import HOST_CALLS, is_strategy, mapped_classes, works_on_host
from hwal.lint.project import Project
from hwal.lint.source import Class, Function, Source

Site = tuple[ast.Call, Source]
"""A call of a function, and the file that it stands in."""


class Context(NamedTuple):
    """How a root is traced. `autograph`: Python's `if` and loops over tensors are converted. `compiled`: XLA compiles it (not
    so with `jit_compile=False`). `jit`: its own text says so. `gradient`: something differentiates it from outside. `keras`:
    Keras calls it."""

    autograph: bool
    compiled: bool = True
    gradient: bool = False
    keras: bool = False
    assumed: bool = False
    why: str = ""
    jit: bool = False


MODEL_METHODS = ("call", "train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
KERAS_METHODS = {
    "layer": ("call",),
    "model": MODEL_METHODS,
    "loss": ("call", "__call__"),
    "metric": ("update_state",),
    "regularizer": ("__call__",),
    "constraint": ("__call__",),
    "optimizer": ("update_step",),
}
KERAS_BASES = re.compile(
    r"^keras\.(?:layers\.(?:[A-Z]\w*)|models\.(?:Model|Sequential)|(?P<model>Model|Sequential)|Layer|(?P<loss>(?:losses\.)?Loss)|"
    r"losses\.(?P<loss2>\w+)|metrics\.(?P<metric>\w+)|(?P<metric2>Metric)|regularizers\.(?P<regularizer>\w+)|(?P<reg2>Regularizer)|"
    r"constraints\.(?P<constraint>\w+)|optimizers\.(?P<optimizer>\w+)|applications\.\w+)$"
)

FUNCTION = "tensorflow.function"
NOT_CONVERTED = ("tensorflow.autograph.experimental.do_not_convert", "tensorflow.custom_gradient")
GRADIENT = "tensorflow.custom_gradient"
HOST_FUNCTIONS = frozenset(
    {
        "tensorflow.py_function",
        "tensorflow.numpy_function",
        "tensorflow.compat.v1.py_func",
        "tensorflow.data.Dataset.from_generator",
    }
)
LOSS_KEYWORDS = {
    "loss": True, "losses": True, "metrics": False, "weighted_metrics": False, "activation": True,
    "recurrent_activation": True, "kernel_regularizer": True, "activity_regularizer": True, "kernel_constraint": False,
}  # fmt: skip
"""Keywords under which Keras is given functions that it traces -> whether a gradient is taken through them."""


def keras_kind(project: Project, class_: Class) -> str | None:
    """`layer`, `model`, `loss`, `metric`, …: what Keras takes a class for, through all its bases."""
    kind = None
    for name in project.ancestors(class_):
        match = KERAS_BASES.match(name)
        if match:
            groups = [re.sub(r"\d", "", key) for key, value in match.groupdict().items() if value]
            found = groups[0] if groups else "model" if ".models." in name else "layer"
            kind = {"reg": "regularizer"}.get(found, found)
            if kind == "model":
                return kind
        elif name == "tensorflow.Module":
            kind = kind or "module"
    return kind


class Contexts:
    """The roots among a project's functions. `autograph_in_keras` is True for Keras 2, whose layers AutoGraph converts."""

    def __init__(self, project: Project, autograph_in_keras: bool = False) -> None:
        self._project = project
        self._keras_autograph = autograph_in_keras
        self.host: set[Function] = set()
        self.roots: dict[Function, Context] = {}
        self._given: dict[Function, Context] = {}
        self.made: dict[Class, list[ast.Call]] = {}
        self.sites: dict[Function, list[Site]] = {}
        self._mapped = mapped_classes(project)
        for source in project.sources:
            if source.uses("tensorflow", "keras", "tf_keras"):
                self._calls(source)
        for source in project.sources:
            if source.uses("tensorflow", "keras", "tf_keras"):
                for function in source.functions:
                    context = self._root(function)
                    if context:
                        self.roots[function] = context
        for function, context in self.roots.items():
            if context.why == "tf.function" and not context.jit and self._hands_on(function):
                self.roots[function] = context._replace(compiled=False)
        alone = Assumptions(project, self._mapped, self.roots)
        for source in project.sources:
            if source.uses("tensorflow"):
                for function in alone.compiled(source, self.host | self.sites.keys()):
                    self.roots[function] = Context(True, assumed=True, why="nobody here calls it")

    def autograph_of(self, function: Function, outer: bool) -> bool:
        """Whether AutoGraph converts a function that is called while another, converted or not, is traced. It gives up, aloud
        and with the code as it is, on `:=` and on generators (measured with TensorFlow 2.21)."""
        if not function.convertible:
            return False
        for decorator in function.decorators:
            name = function.module.names.resolve(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name in NOT_CONVERTED:
                return False
            if name == FUNCTION:
                return _keyword(decorator, "autograph", True)
        if function.outer is not None and any(
            function.module.names.resolve(d) == GRADIENT for d in function.outer.decorators if not isinstance(d, ast.Call)
        ):
            return False
        return outer

    def _calls(self, source: Source) -> None:
        """Functions that are handed to something: to tf.function, to a dataset, to compile()."""
        names = source.names
        for call, function in source.calls:
            target = self._project.called(call.func, function, source)
            if isinstance(target, Function):
                self.sites.setdefault(target, []).append((call, source))
            elif isinstance(target, Class):
                self.made.setdefault(target, []).append(call)
            dotted = names.resolve(call.func)
            attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            first = call.args[0] if call.args else _argument(call, "fn") or _argument(call, "func")
            if dotted == FUNCTION or dotted in ("tensorflow.xla.experimental.compile", "tensorflow.autograph.to_graph"):
                self._give(first, function, source, _of_function(call))
            elif dotted == "keras.layers.Lambda":
                self._give(first or _argument(call, "function"), function, source, self._keras(True, "keras.layers.Lambda"))
            elif dotted in HOST_FUNCTIONS or (
                attribute in HOST_CALLS and (dotted is None or dotted.startswith("tensorflow.data"))
            ):
                self._host(first, function, source)
            elif target is None and first is not None and self._runs(call, function, source):
                self._give(first, function, source, Context(True, why="strategy.run"))
            own = isinstance(target, Function)  # what the project's own functions do with a loss, they do themselves
            if attribute == "compile" or (dotted is None and not own) or (dotted or "").startswith("keras."):
                for keyword in call.keywords:
                    if keyword.arg in LOSS_KEYWORDS:
                        gradient = LOSS_KEYWORDS[keyword.arg]
                        for value in _functions_in(keyword.value):
                            self._give(value, function, source, self._keras(gradient, f"{keyword.arg}= of compile()"))

    def _keras(self, gradient: bool, why: str) -> Context:
        return Context(self._keras_autograph, gradient=gradient, keras=True, why=why)

    def _runs(self, call: ast.Call, function: Function | None, source: Source) -> bool:
        """Whether a call is that of a strategy's `run`; `args=(x,)` apart from a function is how strategies alone are asked."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("run", "experimental_run_v2"):
            return False
        apart = isinstance(_argument(call, "args"), ast.Tuple) and source.names.resolve(func) is None
        return apart or is_strategy(self._project, func.value, function, source)

    def _give(self, node: ast.expr | None, function: Function | None, source: Source, context: Context) -> None:
        target = self._target(node, function, source)
        if target is not None:
            self._given[target] = context

    def _host(self, node: ast.expr | None, function: Function | None, source: Source) -> None:
        target = self._target(node, function, source)
        if target is not None:
            self.host.add(target)

    def _target(self, node: ast.expr | None, function: Function | None, source: Source) -> Function | None:
        if isinstance(node, ast.Call):
            if node.args and ast.unparse(node.func).endswith("partial"):  # functools.partial(f, …)
                node = node.args[0]
            else:
                return self._made(node, function, source)
        found = self._project.called(node, function, source) if node is not None else None
        return found if isinstance(found, Function) else None

    def _made(self, node: ast.Call, function: Function | None, source: Source) -> Function | None:
        """The inner function that a call of a function of the project returns: `dice_loss(smooth=1.0)`."""
        maker = self._project.called(node.func, function, source)
        if isinstance(maker, Function) and not isinstance(maker.node, ast.Lambda):
            for statement in maker.node.body:
                if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name):
                    return maker.inner.get(statement.value.id)
        return None

    def _root(self, function: Function) -> Context | None:
        names = function.module.names
        for decorator in function.decorators:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = names.resolve(call.func if call else decorator)
            if call and name == "functools.partial" and call.args:
                name = names.resolve(call.args[0])
            if name == FUNCTION:
                return _of_function(decorator)
        if function in self._given:
            return self._given[function]
        class_ = function.class_
        if class_ is not None and function.outer is None and not works_on_host(self._project, class_, self._mapped):
            kind = keras_kind(self._project, class_)
            if kind and function.name in KERAS_METHODS.get(kind, ()):
                gradient = kind in ("layer", "model", "loss", "regularizer")
                return self._keras(
                    gradient and function.name not in ("test_step", "predict_step", "train_step"), f"{kind}.{function.name}"
                )
        return None

    def _hands_on(self, function: Function) -> bool:
        """Whether a tf.function that asks for no XLA itself calls one that does: it is the host's part of a program."""
        targets = (self._project.called(call.func, function, function.module) for call in function.calls)
        return any(isinstance(t, Function) and t is not function and t in self.roots and self.roots[t].jit for t in targets)


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _keyword(node: ast.expr, name: str, default: bool) -> bool:
    """A boolean keyword of a decorator or call, as written."""
    value = _argument(node, name) if isinstance(node, ast.Call) else None
    return bool(value.value) if isinstance(value, ast.Constant) and value.value is not None else default


def _of_function(node: ast.expr) -> Context:
    jit = _keyword(node, "jit_compile", False) or _keyword(node, "experimental_compile", False)
    return Context(_keyword(node, "autograph", True), _keyword(node, "jit_compile", True), why="tf.function", jit=jit)


def _functions_in(node: ast.expr) -> Iterator[ast.expr]:
    """Functions in `loss=f`, `metrics=[f, g]`, `loss={"a": f}`."""
    if isinstance(node, ast.Name | ast.Lambda | ast.Attribute | ast.Call):
        yield node
    elif isinstance(node, ast.List | ast.Tuple):
        for item in node.elts:
            yield from _functions_in(item)
    elif isinstance(node, ast.Dict):
        for item in node.values:
            yield from _functions_in(item)
