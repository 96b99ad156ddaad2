"""Project: the files that are linted together, and the functions and classes that names mean across them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from hwal.lint.source import Class, Function, Source

NO_DENSE = ("tensorflow.ragged.", "tensorflow.RaggedTensor.", "tensorflow.SparseTensor", "tensorflow.sparse.from_dense")
"""Functions that make tensors which are no dense ones."""


class Project:
    """Sources by their dotted names; what `helper(x)`, `self.step(x)` and `module.loss` call."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = list(sources)
        self._by_name = {source.name: source for source in self.sources if source.name}
        self._by_tail: dict[str, list[Source]] = {}
        for name, source in self._by_name.items():
            self._by_tail.setdefault(name.rpartition(".")[2], []).append(source)
        self.has_keras = any(name.startswith("keras.") for name in self._by_name)

    @cached_property
    def sparse(self) -> bool:
        """Whether some file makes inputs that are no dense tensors: `keras.Input((3,), sparse=True)`, `tf.SparseTensorSpec`,
        or a ragged tensor at its top."""
        return any(
            _sparse(call, source) or (function is None and (source.names.resolve(call.func) or "").startswith(NO_DENSE))
            for source in self.sources
            for call, function in source.calls
        )

    def find(self, dotted: str) -> Function | Class | None:
        """What a dotted name means among these files: a top-level function, a class, or a method."""
        module, _, name = dotted.rpartition(".")
        source = self._by_name.get(module) or self._tail(module)
        if source is not None:
            found: Function | Class | None = source.top.get(name) or source.classes.get(name)
            if found is None and (again := source.names.imported(name)) and again != dotted:
                return self.find(again)  # a package that hands on what a module of it defines
            return found
        owner, _, class_name = module.rpartition(".")
        source = self._by_name.get(owner) or self._tail(owner)
        class_ = source.classes.get(class_name) if source else None
        return self.method(class_, name) if class_ else None

    def _tail(self, module: str) -> Source | None:
        """A script's folder is its import root: `import model` beside train.py means the file beside it."""
        found = self._by_tail.get(module, ())
        return found[0] if len(found) == 1 else None

    def called(self, node: ast.expr, function: Function | None, source: Source) -> Function | Class | None:
        """The function or class of the project that an expression names, seen from inside `function`."""
        if isinstance(node, ast.Lambda):
            return source.by_node.get(node)
        if isinstance(node, ast.Name):
            scope = function
            while scope is not None:
                if node.id in scope.inner:
                    return scope.inner[node.id]
                scope = scope.outer
            if node.id in source.top:
                return source.top[node.id]
            if node.id in source.classes:
                return source.classes[node.id]
            held = source.globals.get(node.id)
            if isinstance(held, ast.Call) and held.args and source.names.resolve(held.func) == "tensorflow.function":
                return self.called(held.args[0], None, source)  # step = tf.function(train_step)
            dotted = source.names.imported(node.id)
            return self.find(dotted) if dotted else None
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                class_ = enclosing_class(function)
                if class_ is None:
                    return None
                return self.method(class_, node.attr) or self._attribute(class_, node.attr)
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
                class_ = enclosing_class(function)
                for base in self.bases(class_) if class_ else ():
                    if isinstance(base, Class) and (found := self.method(base, node.attr)):
                        return found
                return None
            dotted = source.names.resolve(node)
            if dotted:
                return self.find(dotted)
            if isinstance(node.value, ast.Name) and node.value.id in source.classes:
                return self.method(source.classes[node.value.id], node.attr)
            made = source.globals.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Name):  # Trainer().step, trainer.step
                owner = self.called(made.func, None, source)
                return self.method(owner, node.attr) if isinstance(owner, Class) else None
        return None

    def _attribute(self, class_: Class, name: str) -> Function | Class | None:
        """`self.step` where __init__ says `self.step = tf.function(self._step)`, or `self.loss = my_loss`."""
        value = class_.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, ast.Call) and class_.module.names.resolve(value.func) == "tensorflow.function" and value.args:
            value = value.args[0]
        if isinstance(value, ast.Name | ast.Lambda):
            return self.called(value, None, class_.module)
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "self":
            return self.method(class_, value.attr)
        return None

    def instance(self, class_: Class, name: str) -> Class | None:
        """The class of this project that `self.name` is an instance of."""
        value = class_.attributes.get(name)
        if isinstance(value, ast.Call):
            found = self.called(value.func, None, class_.module)
            return found if isinstance(found, Class) else None
        return None

    def method(self, class_: Class, name: str, seen: frozenset[int] = frozenset()) -> Function | None:
        """A method, looked up in a class and then in its bases."""
        if name in class_.methods:
            return class_.methods[name]
        for base in self.bases(class_):
            if isinstance(base, Class) and id(base) not in seen:
                found = self.method(base, name, seen | {id(class_)})
                if found:
                    return found
        return None

    def bases(self, class_: Class) -> Iterator[Class | str]:
        """A class's bases: classes of the project, or dotted names."""
        for node in class_.node.bases:
            found = self.called(node, None, class_.module)
            if isinstance(found, Class) and found is not class_:
                yield found
            elif dotted := class_.module.names.resolve(node):
                yield dotted

    def ancestors(self, class_: Class, seen: frozenset[int] = frozenset()) -> Iterator[str]:
        """The dotted names of all bases outside the project, near and far."""
        if id(class_) in seen:
            return
        for base in self.bases(class_):
            if isinstance(base, str):
                yield base
            else:
                yield from self.ancestors(base, seen | {id(class_)})


def _sparse(call: ast.Call, source: Source) -> bool:
    asked = (k for k in call.keywords if k.arg in ("sparse", "ragged"))
    name = source.names.resolve(call.func) or ""
    spec = name in ("tensorflow.SparseTensorSpec", "tensorflow.RaggedTensorSpec")
    return spec or any(isinstance(k.value, ast.Constant) and k.value.value is True for k in asked)


def enclosing_class(function: Function | None) -> Class | None:
    while function is not None:
        if function.class_ is not None:
            return function.class_
        function = function.outer
    return None
