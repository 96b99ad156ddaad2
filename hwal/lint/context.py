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
        self._mapped: set[Class] = set()
        for source in project.sources:
            if source.uses("tensorflow", "keras", "tf_keras"):
                self._calls(source)
                self._mapped |= mapped_classes(project, source)
        for source in project.sources:
            if source.uses("tensorflow", "keras", "tf_keras"):
                for function in source.functions:
                    context = self._root(function)
                    if context:
                        self.roots[function] = context
        for function, context in self.roots.items():
            if context.why == "tf.function" and not context.jit and self._hands_on(function):
                self.roots[function] = context._replace(compiled=False)
        for source in project.sources:
            if source.uses("tensorflow"):
                self._assume(source)

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
            elif target is None and first is not None and self._runs(call.func, function, source):
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

    def _runs(self, func: ast.expr, function: Function | None, source: Source) -> bool:
        if not isinstance(func, ast.Attribute) or func.attr not in ("run", "experimental_run_v2"):
            return False
        return is_strategy(self._project, func.value, function, source)

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
        if class_ is not None and function.outer is None and not self._on_host(class_):
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

    def _assume(self, source: Source) -> None:
        """Adds the functions that nobody here calls and that compute with tensors."""
        if is_test(source.path) or (source.name and source.name.rpartition(".")[2] in ("conftest", "setup")):
            return
        pipeline = any(
            (name := source.names.resolve(call.func)) and name.startswith("tensorflow.data.") for call, _ in source.calls
        )
        for function in source.functions:
            if (
                function in self.roots
                or function in self.host
                or function in self.sites
                or isinstance(function.node, ast.Lambda)
            ):
                continue
            if function.outer is not None or not function.parameters or not self._callable_alone(function):
                continue
            if HOST_NAMES.match(function.name) or _gives_plain(function):
                continue
            if self._computes(function, pipeline):
                self.roots[function] = Context(True, assumed=True, why="nobody here calls it")

    def _callable_alone(self, function: Function) -> bool:
        """A function that somebody else may compile: one of a file, a static method, or what a tf.Module is called for."""
        if function.class_ is None or not function.bound:
            return True
        module = function.name == "__call__" and "tensorflow.Module" in self._project.ancestors(function.class_)
        return module and not self._on_host(function.class_)

    def _on_host(self, class_: Class) -> bool:
        return works_on_host(self._project, class_, self._mapped)

    def _computes(self, function: Function, pipeline: bool, depth: int = 0) -> bool:
        """Whether a function's body is that of a computation: it calls TensorFlow, and does nothing that only a host does."""
        names = function.module.names
        first = function.parameters[0].arg if function.parameters else ""
        computes = depth == 0 and TENSOR_NAME.match(first) is not None
        for inner in [function, *_inner(function)]:
            for call in inner.calls:
                dotted = names.resolve(call.func)
                if dotted is None:
                    if isinstance(call.func, ast.Attribute) and call.func.attr in HOST_METHODS:
                        return False
                    if isinstance(call.func, ast.Name) and call.func.id in ("open", "input"):
                        return False
                elif dotted.startswith("tensorflow."):
                    short = dotted[len("tensorflow.") :]
                    if short.startswith(HOST_MODULES) or (pipeline and short.startswith(("io.", "strings.", "image.decode"))):
                        return False
                    computes = True
                elif dotted.partition(".")[0] in ("os", "argparse", "logging", "absl", "matplotlib", "json"):
                    return False
                if not computes and depth < 3:
                    target = self._project.called(call.func, inner, inner.module)
                    computes = isinstance(target, Function) and (
                        target in self.roots or self._computes(target, pipeline, depth + 1)
                    )
        return computes


TENSOR_NAME = re.compile(r"^(?:x|inputs?|tensors?|logits|images?)\d?$")
"""A first parameter of such a name makes a function one of tensors, in a file that imports TensorFlow."""

HOST_NAMES = re.compile(
    r"^(?:main|run|train|evaluate|fit|test|setup|build|create|make|get|load|read|parse|decode|preprocess|augment|input_fn|"
    r"save|write|export|plot|show|download|prepare|configure|init|serving|restore|convert|print|log|display|visualize)"
    r"(?:_|$|[A-Z])|.*(?:_fn_builder|_dataset|_model|_example|_strategy)$"
)
HOST_METHODS = frozenset(
    {
        "fit", "evaluate", "predict", "save", "save_weights", "load_weights", "from_tensor_slices", "as_numpy_iterator",
        "prefetch", "take", "write_file", "restore", "summary", "read_text", "write_text", "add_argument", "parse_args",
        "session", "run_eagerly", "experimental_distribute_dataset", "scope", "eval", "get_config", "savefig", "tolist",
}
)  # fmt: skip
HOST_MODULES = (
    "data.", "saved_model", "config.", "distribute.", "io.gfile", "io.TFRecord", "train.Checkpoint", "train.Example",
    "train.Feature", "train.latest", "summary.create", "compat.v1.Session", "compat.v1.placeholder", "compat.v1.flags",
    "compat.v1.app", "compat.v1.train", "profiler", "lite", "test.", "tpu.", "random.set_seed",
)  # fmt: skip


def _inner(function: Function) -> Iterator[Function]:
    for inner in function.inner.values():
        yield inner
        yield from _inner(inner)


def _gives_plain(function: Function) -> bool:
    """Whether a function gives back no tensor: nothing at all, an array (`x.numpy()`), or Python numbers made of tensors,
    `float(loss)` or `[int(i) for i in ids]`. It runs eagerly then, unless it is there for the variables that it assigns."""
    body = [node for statement in _body(function) for node in ast.walk(statement)]
    returned = [node.value for node in body if isinstance(node, ast.Return | ast.Yield) and node.value is not None]
    if not returned:
        return not isinstance(function.node, ast.Lambda) and not any(
            isinstance(node, ast.Attribute) and node.attr.startswith("assign") for node in body
        )
    made = [value.elt if isinstance(value, ast.ListComp | ast.GeneratorExp) else value for value in returned]
    calls = [one.func for one in made if isinstance(one, ast.Call)]
    return any(
        (isinstance(call, ast.Name) and call.id in PLAIN) or (isinstance(call, ast.Attribute) and call.attr == "numpy")
        for call in calls
    )


def _body(function: Function) -> list[ast.AST]:
    return list(function.node.body) if isinstance(function.node.body, list) else [function.node.body]


PLAIN = ("float", "int", "bool", "str")


def is_test(path: str) -> bool:
    """Whether a file is a test, by its name: what it traces on purpose is told, nothing else."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return name.startswith(("test_", "conftest")) or name.endswith(("_test.py", "_tests.py"))


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
