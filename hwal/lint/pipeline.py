"""Pipeline: Keras layers that work on the host, in a dataset, and strategies, whose `run` traces what it is given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from hwal.lint.project import Project, enclosing_class
from hwal.lint.source import Class, Function, Source

HOST_CALLS = frozenset(
    {"map", "filter", "flat_map", "interleave", "from_generator", "group_by_window", "scan", "batch", "apply"}
)
"""Methods of tf.data's datasets that call, on the host, what they are given."""

HOST_BASES = re.compile(
    r"(?:^|\.)(?:Base)?(?:PreprocessingLayer|\w*Tokenizer|\w*Preprocessor|ImageConverter|AudioConverter|ImageAugmentationLayer)$"
)
"""The bases of Keras Hub and Keras CV for what goes into dataset.map."""

STRATEGY = re.compile(r"(?:^|_)strategy$|^strat$", re.IGNORECASE)
OF_STRATEGIES = frozenset({"scope", "experimental_distribute_dataset", "distribute_datasets_from_function"})
"""What an object is called, and which methods it has, that is a strategy of tf.distribute."""


def works_on_host(project: Project, class_: Class, mapped: AbstractSet[Class]) -> bool:
    """Whether a layer works in an input pipeline: by its bases, or since datasets alone are given it (`mapped`)."""
    return class_ in mapped or any(HOST_BASES.search(name) for name in lineage(project, class_))


def lineage(project: Project, class_: Class, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """The names of all bases, those of the project among them."""
    if id(class_) in seen:
        return
    for base in project.bases(class_):
        if isinstance(base, str):
            yield base
        else:
            yield base.name
            yield from lineage(project, base, seen | {id(class_)})


def mapped_classes(project: Project) -> set[Class]:
    """The classes of which objects are handed to datasets alone, in all files: `augment = Crop()`, `dataset.map(augment)`,
    `dataset.map(lambda x, y: (augment(x), y))`."""
    mapped: set[Class] = set()
    elsewhere: set[Class] = set()
    given = {source: list(_given_to_datasets(project, source)) for source in project.sources}
    if not any(given.values()):
        return set()
    held = {source: _held(project, source) for source in project.sources}
    imported = {f"{source.name}.{text}": classes for source in held if source.name for text, classes in held[source].items()}
    for source in project.sources if any(held.values()) else ():
        inside = {id(node) for argument in given[source] for node in ast.walk(argument)}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Name | ast.Attribute | ast.Call) and not isinstance(getattr(node, "ctx", None), ast.Store):
                classes = held[source].get(_text(node))
                if classes is None and not isinstance(node, ast.Call):
                    classes = imported.get(source.names.resolve(node) or "")
                (mapped if id(node) in inside else elsewhere).update(classes or ())
    return mapped - elsewhere


def _held(project: Project, source: Source) -> dict[str, set[Class]]:
    """What a file holds objects of layers in, `augment` or `self.augment` -> their classes."""
    held: dict[str, set[Class]] = {}
    for call, function in source.calls if source.uses("tensorflow", "keras", "tf_keras") else ():
        made = project.called(call.func, function, source)
        if isinstance(made, Class) and made.methods.keys() & {"call", "__call__"}:
            above = source.parents.get(call)
            held.setdefault(_text(above.targets[0] if isinstance(above, ast.Assign) else call), set()).add(made)
    return held


def _text(node: ast.expr) -> str:
    """`augment`, `self.augment`, `Crop()`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
    return f"{_text(node.func)}()" if isinstance(node, ast.Call) else ""


def _given_to_datasets(project: Project, source: Source) -> Iterator[ast.AST]:
    for call, function in source.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in HOST_CALLS and call.args:
            dotted = source.names.resolve(call.func)
            if dotted is None or dotted.startswith("tensorflow.data"):
                yield call.args[0]
                given = project.called(call.args[0], function, source)
                if isinstance(given, Function):
                    yield given.node


def is_strategy(project: Project, node: ast.expr, function: Function | None, source: Source, depth: int = 0) -> bool:
    """Whether an object is known to be a strategy of tf.distribute, or hwal's runtime, or is named as one."""
    if isinstance(node, ast.Call):
        dotted = source.names.resolve(node.func) or ""
        if dotted.startswith("tensorflow.distribute.") or dotted == "hwal.start":
            return True
        maker = project.called(node.func, function, source) if depth < 3 else None
        return isinstance(maker, Function) and _returns_strategy(project, maker, depth + 1)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if STRATEGY.search(name):
        return True
    text = _text(node)
    for call, _ in source.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in OF_STRATEGIES and _text(func.value) == text:
            return True
        above = source.parents.get(call)
        bound = above.targets if isinstance(above, ast.Assign) else [getattr(above, "optional_vars", None)]
        named = any(target is not None and _text(target) == text for target in bound)
        if named and is_strategy(project, call, function, source, depth):
            return True
    class_ = enclosing_class(function)
    held = class_.attributes.get(name) if class_ is not None and isinstance(node, ast.Attribute) else None
    return isinstance(held, ast.Call) and is_strategy(project, held, function, source, depth)


def _returns_strategy(project: Project, maker: Function, depth: int) -> bool:
    """Whether a function of the project gives back a strategy: `def make(): return tf.distribute.MirroredStrategy()`."""
    if isinstance(maker.node, ast.Lambda):
        return is_strategy(project, maker.node.body, maker, maker.module, depth)
    returned = (node.value for line in maker.node.body for node in ast.walk(line) if isinstance(node, ast.Return))
    return any(value is not None and is_strategy(project, value, maker, maker.module, depth) for value in returned)
