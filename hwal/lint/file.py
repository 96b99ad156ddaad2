"""File: what a rule that looks at a whole file, not at one traced function, may ask."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from hwal.lint.context import Contexts
from hwal.lint.project import Project
from hwal.lint.source import Function, Source
from hwal.lint.steps import Steps

TPU = ("tensorflow.distribute.TPUStrategy", "tensorflow.distribute.experimental.TPUStrategy")
XLA = re.compile(r"xla|tpu", re.IGNORECASE)
HARDWARE = re.compile(r"xla|tpu|cuda|npu|mps|hpu|sagemaker|_available|device_type|device\.type", re.IGNORECASE)
"""What a condition says that asks which hardware there is, and whether it is XLA's."""


class File:
    """One source, and what it is a part of."""

    def __init__(self, source: Source, project: Project, contexts: Contexts) -> None:
        self.source = source
        self.project = project
        self.contexts = contexts

    @cached_property
    def named_calls(self) -> list[tuple[str, ast.Call, Function | None]]:
        """The calls whose function comes from an import, with its canonical name."""
        resolve = self.source.names.resolve
        return [(name, call, function) for call, function in self.source.calls if (name := resolve(call.func))]

    def method_calls(self, *methods: str) -> Iterator[tuple[ast.Call, Function | None]]:
        for call, function in self.source.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in methods:
                yield call, function

    @cached_property
    def on_tpu(self) -> bool:
        """Whether the file names a TPU strategy."""
        return any(name in TPU for name, _, _ in self.named_calls)

    @cached_property
    def on_tpu_node(self) -> bool:
        """Whether the program reaches a TPU over the network: its workers do not see this machine's files."""
        for name, call, _ in self.named_calls:
            if name.endswith("TPUClusterResolver") and name.startswith("tensorflow."):
                first = call.args[0] if call.args else keyword(call, "tpu")
                return not (isinstance(first, ast.Constant) and first.value == "local")
        return False

    @cached_property
    def compiles(self) -> bool:
        """Whether the file itself asks for XLA."""
        return self.on_tpu or any(
            isinstance(k.value, ast.Constant) and k.value.value is True
            for call, _ in self.source.calls
            for k in call.keywords
            if k.arg == "jit_compile"
        )

    @cached_property
    def torch_xla(self) -> bool:
        """Whether the file is a torch script for any hardware: it imports torch_xla, or hwal's runtime."""
        return self.source.uses("torch_xla") or (self.source.uses("torch") and self.source.uses("hwal"))

    @cached_property
    def torch_trains(self) -> bool:
        """Whether the file is a torch training script: it calls `.backward()`."""
        return self.source.uses("torch", "torch_xla") and any(True for _ in self.method_calls("backward"))

    @cached_property
    def portable_torch(self) -> bool:
        """Whether the file is a torch training script, whose lines ought to run on any hardware."""
        return self.source.uses("torch") and (self.torch_xla or self.torch_trains)

    @cached_property
    def steps(self) -> Steps:
        """The code that runs once for each training step."""
        return Steps(self.source, self.project)

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of certain kinds around a node, innermost first."""
        parents: Mapping[ast.AST, ast.AST] = self.source.parents
        current = parents.get(node)
        while current is not None:
            if isinstance(current, kinds):
                yield current
            current = parents.get(current)

    def elsewhere(self, node: ast.AST) -> bool:
        """Whether an `if` around a node, or the node's own, sends other hardware than XLA's there."""
        child: ast.AST | None = None
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.If | ast.IfExp) and HARDWARE.search(text := ast.unparse(current.test)):
                xla = XLA.search(text) is not None and "not " not in text
                below = current.orelse if isinstance(current.orelse, list) else [current.orelse]
                if xla == (child in below):
                    return True
            child, current = current, self.source.parents.get(current)
        return False

    def step_nodes(self, *kinds: type[ast.AST]) -> Iterator[tuple[ast.AST, Function | None]]:
        """The nodes of these kinds in code that runs once for each training step, with the function each stands in; none in a
        file that is no script for torch_xla, nor where only other hardware comes."""
        if self.torch_xla:
            for node, function in self.steps.nodes():
                if isinstance(node, kinds) and not self.elsewhere(node):
                    yield node, function


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The value of a call's keyword."""
    return next((k.value for k in call.keywords if k.arg in names), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
