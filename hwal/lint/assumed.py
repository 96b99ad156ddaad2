"""Assumed: which of the functions that nobody in the files calls are compiled by somebody else, and which run on the host.

A model's library has no `tf.function` of its own, so that a function that takes tensors and computes with them counts as
compiled. What only eager code does says otherwise: files, other libraries, arrays and Python's numbers as results, a search
that uses where it broke off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from hwal.lint.pipeline import works_on_host
from hwal.lint.project import Project
from hwal.lint.source import Class, Function, Source


class Assumptions:
    """What can be told of functions without a caller. `mapped`: classes that datasets alone are given; `roots`: the functions
    that are known to be traced."""

    def __init__(self, project: Project, mapped: AbstractSet[Class], roots: Mapping[Function, object]) -> None:
        self._project = project
        self._mapped = mapped
        self._roots = roots

    def compiled(self, source: Source, known: AbstractSet[Function]) -> Iterator[Function]:
        """The functions of a file that nobody here calls and that compute with tensors. `known`: those that somebody calls, or
        that are given to a dataset."""
        if is_test(source.path) or (source.name and source.name.rpartition(".")[2] in ("conftest", "setup")):
            return
        pipeline = any(
            (name := source.names.resolve(call.func)) and name.startswith("tensorflow.data.") for call, _ in source.calls
        )
        for function in source.functions:
            if function in self._roots or function in known or isinstance(function.node, ast.Lambda):
                continue
            if function.outer is not None or not function.parameters or not self._callable_alone(function):
                continue
            if HOST_NAMES.match(function.name) or _gives_plain(function) or _searches(function):
                continue
            if self._computes(function, pipeline):
                yield function

    def _callable_alone(self, function: Function) -> bool:
        """A function that somebody else may compile: one of a file, a static method, or what a tf.Module is called for."""
        if function.class_ is None or not function.bound:
            return True
        module = function.name == "__call__" and "tensorflow.Module" in self._project.ancestors(function.class_)
        return module and not works_on_host(self._project, function.class_, self._mapped)

    def _computes(self, function: Function, pipeline: bool, depth: int = 0) -> bool:
        """Whether a function's body is that of a computation: it calls TensorFlow, and does nothing that only a host does."""
        names = function.module.names
        first = function.parameters[0].arg if function.parameters else ""
        computes = depth == 0 and TENSOR_NAME.match(first) is not None
        for inner in [function, *_inner(function)]:
            for call in inner.calls:
                dotted = names.resolve(call.func)
                if dotted is None:
                    if _of_host(call.func, function):
                        return False
                elif dotted.startswith("tensorflow."):
                    short = dotted[len("tensorflow.") :]
                    if short.startswith(HOST_MODULES) or (pipeline and short.startswith(("io.", "strings.", "image.decode"))):
                        return False
                    computes = True
                elif dotted.partition(".")[0] in HOST_PACKAGES:
                    return False
                if not computes and depth < 3:
                    target = self._project.called(call.func, inner, inner.module)
                    computes = isinstance(target, Function) and (
                        target in self._roots or self._computes(target, pipeline, depth + 1)
                    )
        return computes


TENSOR_NAME = re.compile(r"^(?:x|inputs?|tensors?|logits|images?)\d?$")
"""A first parameter of such a name makes a function one of tensors, in a file that imports TensorFlow."""

HOST_PACKAGES = frozenset(
    {
        "os", "argparse", "logging", "absl", "matplotlib", "json", "transformers", "tokenizers", "datasets", "sentencepiece",
        "sklearn", "scipy", "pandas", "cv2", "PIL", "imageio", "librosa", "soundfile", "h5py", "csv", "pickle", "shutil",
        "subprocess", "pathlib", "glob", "requests", "tqdm", "wandb", "mlflow", "gym", "gymnasium", "seaborn", "plotly", "nltk",
}
)  # fmt: skip
"""Packages whose functions no traced function calls."""

MODEL = re.compile(r"^(?:model|net|network|encoder|decoder|generator|policy|agent|llm)$")
"""Names of arguments that are models."""

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


def _searches(function: Function) -> bool:
    """Whether a function has a loop that it breaks off and whose counter it uses afterwards, or in which it asks a model again
    and again until it breaks off. AutoGraph converts neither, so that it runs eagerly."""
    given = {parameter.arg for parameter in function.parameters if MODEL.match(parameter.arg)}
    nodes = list(ast.walk(function.node))
    for loop in nodes:
        if not isinstance(loop, ast.For) or not any(isinstance(node, ast.Break) for node in ast.walk(loop)):
            continue
        called = {node.func.id for node in ast.walk(loop) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if called & given or (isinstance(loop.target, ast.Name) and _read_after(function, loop, loop.target.id, nodes)):
            return True
    return False


def _read_after(function: Function, loop: ast.For, name: str, nodes: list[ast.AST]) -> bool:
    """Whether a name is read below a loop before another line of its block, or a loop around the read, gives it a value."""
    parents = function.module.parents
    end = loop.end_lineno or loop.lineno
    below = [node for node in nodes if isinstance(node, ast.Name) and node.id == name and node.lineno > end]
    again: set[int] = set()
    first = None
    for node in below:
        above = parents.get(node)
        if isinstance(node.ctx, ast.Store) and above is not None:
            if isinstance(above, ast.For | ast.comprehension):
                inside = above if isinstance(above, ast.For) else parents[above]
                again |= {id(inner) for inner in ast.walk(inside)} - {id(inner) for inner in ast.walk(above.iter)}
            if not isinstance(above, ast.comprehension) and parents.get(above) is parents.get(loop):
                first = min(first or node.lineno, node.lineno)
    reads = (node for node in below if isinstance(node.ctx, ast.Load) and id(node) not in again)
    return any(first is None or node.lineno <= first for node in reads)


def _of_host(func: ast.expr, function: Function) -> bool:
    """Whether a call of no imported name is one that only a host makes: of `open`, of a model's `fit`, or of what a file has
    from another library, `tokenizer = AutoTokenizer.from_pretrained(…)`."""
    if isinstance(func, ast.Name):
        return func.id in ("open", "input")
    if not isinstance(func, ast.Attribute):
        return False
    source = function.module
    made = source.globals.get(func.value.id) if isinstance(func.value, ast.Name) else None
    name = source.names.resolve(made.func) if isinstance(made, ast.Call) else None
    return func.attr in HOST_METHODS or (name is not None and name.partition(".")[0] in HOST_PACKAGES)


def _body(function: Function) -> list[ast.AST]:
    return list(function.node.body) if isinstance(function.node.body, list) else [function.node.body]


PLAIN = ("float", "int", "bool", "str")


def is_test(path: str) -> bool:
    """Whether a file is a test, by its name: what it traces on purpose is told, nothing else."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return name.startswith(("test_", "conftest")) or name.endswith(("_test.py", "_tests.py"))
