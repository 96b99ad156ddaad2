"""Source: one file, parsed once, and an index of what stands in it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hwal.lint.names import Names

MENTION = re.compile(r"\b(?:tensorflow|keras|tf_keras|torch|torch_xla|hwal)\b")
"""A file without one of these words is parsed, for it must be Python, and not looked at further."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """A function, method or lambda, and where it stands."""

    node: FunctionNode
    name: str
    module: Source
    class_: Class | None = None
    outer: Function | None = None
    inner: dict[str, Function] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    """Calls in its body, not in those of inner functions."""

    @property
    def decorators(self) -> list[ast.expr]:
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    @property
    def parameters(self) -> list[ast.arg]:
        args = self.node.args
        return [*args.posonlyargs, *args.args]

    @cached_property
    def convertible(self) -> bool:
        """Whether AutoGraph can convert it: neither it nor a function inside it has `:=` or `yield`."""
        return not any(isinstance(node, ast.NamedExpr | ast.Yield | ast.YieldFrom) for node in ast.walk(self.node))

    @property
    def bound(self) -> bool:
        """Whether its first parameter is the object or class that it is called on."""
        return self.class_ is not None and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in self.decorators)

    def defaults(self) -> Mapping[str, ast.expr]:
        """Parameter name -> its default."""
        args = self.node.args
        positional = [*args.posonlyargs, *args.args]
        found = {a.arg: d for a, d in zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)}
        found |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Class:
    """A class, its methods and what its methods assign to `self`."""

    node: ast.ClassDef
    name: str
    module: Source
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A parsed file. `cells`: of a notebook, the cell that each line comes from, and the line there."""

    path: str
    text: str
    lines: list[str]
    tree: ast.Module
    name: str = ""
    names: Names = field(default_factory=Names)
    functions: list[Function] = field(default_factory=list)
    top: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    by_node: dict[ast.AST, Function] = field(default_factory=dict)
    calls: list[tuple[ast.Call, Function | None]] = field(default_factory=list)
    globals: dict[str, ast.expr] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    cells: list[tuple[int, int]] | None = None

    def uses(self, *packages: str) -> bool:
        return bool(self.names.packages() & set(packages))


def mentions(text: str) -> bool:
    """Whether a file can have to do with what the linter knows at all."""
    return MENTION.search(text) is not None


def read(path: str, text: str, name: str = "", cells: list[tuple[int, int]] | None = None) -> Source:
    """Parses and indexes one file. Raises as `parse`."""
    tree = parse(path, text)
    source = Source(path, text, text.split("\n"), tree, name, cells=cells)
    _Index(source).visit_body(tree, None, None)
    return source


def parse(path: str, text: str) -> ast.Module:
    """A file's tree. Raises SyntaxError where it is no Python, RecursionError where it is nested too deep to be parsed."""
    if "\0" in text:  # a ValueError, or a SyntaxError without a line, by the version of Python
        before = text[: text.index("\0")]
        raise SyntaxError("a null byte", (path, before.count("\n") + 1, len(before) - before.rfind("\n"), None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the parser, about "\d" say: ruff's business
        try:
            return ast.parse(text, path)
        except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can spell
            line = text.count("\n", 0, error.start) + 1
            raise SyntaxError(f"no text: {error.reason}", (path, line, 1, None)) from None
        except MemoryError:  # the parser's own stack
            raise RecursionError("the parser's stack is full") from None


class _Index:
    """One walk over a tree, by hand: ast.NodeVisitor costs several times as much."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._package = source.name.rpartition(".")[0]
        if source.path.endswith("__init__.py"):
            self._package = source.name

    def visit_body(self, node: ast.AST, function: Function | None, class_: Class | None) -> None:
        """Everything below a node, in the order of the text."""
        source = self._source
        parents = source.parents
        stack = list(ast.iter_child_nodes(node))
        for child in stack:
            parents[child] = node
        stack.reverse()
        while stack:
            child = stack.pop()
            kind = type(child)
            if kind in (ast.Name, ast.Constant, ast.Load, ast.Store):
                continue
            if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda):
                self._function(child, function, class_)  # type: ignore[arg-type]
                continue
            if kind is ast.ClassDef:
                self._class(child, function)  # type: ignore[arg-type]
                continue
            if kind is ast.Call:
                source.calls.append((child, function))  # type: ignore[arg-type]
                if function is not None:
                    function.calls.append(child)  # type: ignore[arg-type]
            elif kind is ast.Import or kind is ast.ImportFrom:
                source.names.add(child, self._package)  # type: ignore[arg-type]
                continue
            elif kind is ast.Assign or kind is ast.AnnAssign:
                self._assigned(child, function)
            below = list(_children(child))
            for inner in below:
                parents[inner] = child
            stack.extend(reversed(below))

    def _function(self, node: FunctionNode, outer: Function | None, class_: Class | None) -> None:
        name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        function = Function(node, name, self._source, class_ if outer is None else None, outer)
        self._source.functions.append(function)
        self._source.by_node[node] = function
        if not isinstance(node, ast.Lambda):
            if outer is not None:
                outer.inner[name] = function
            elif class_ is not None:
                class_.methods.setdefault(name, function)
            else:
                self._source.top[name] = function
            for decorator in node.decorator_list:
                self._source.parents[decorator] = node
                self._outside(decorator, outer)
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
            self._outside(default, outer)
        holder = ast.Module([node.body] if isinstance(node, ast.Lambda) else node.body, [])  # type: ignore[list-item]
        self.visit_body(holder, function, None)
        for child in holder.body:
            self._source.parents[child] = node

    def _outside(self, node: ast.AST, function: Function | None) -> None:
        """A decorator or a default: it belongs to what stands around its function."""
        for child in ast.walk(node):
            for inner in ast.iter_child_nodes(child):
                self._source.parents[inner] = child
            if isinstance(child, ast.Call):
                self._source.calls.append((child, function))

    def _class(self, node: ast.ClassDef, outer: Function | None) -> None:
        class_ = Class(node, node.name, self._source)
        self._source.classes.setdefault(node.name, class_)
        for expression in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            self._outside(expression, outer)
        holder = ast.Module(node.body, [])
        self.visit_body(holder, None, class_)
        for child in holder.body:
            self._source.parents[child] = node

    def _assigned(self, node: ast.AST, function: Function | None) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
        value = node.value  # type: ignore[attr-defined]
        if value is None:
            return
        for target in targets:
            if isinstance(target, ast.Name) and function is None:
                self._source.globals[target.id] = value
                if isinstance(value, ast.Attribute):
                    self._source.names.alias(target.id, value)
            elif (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
                and function is not None
                and function.class_ is not None
            ):
                function.class_.attributes.setdefault(target.attr, value)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST):
            yield value
