"""Look-up tables of numbers that stand in the text, as constants: the fix of XLA104."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Edit, Fix
from hwal.lint.file import keyword
from hwal.lint.source import Source

LONGEST = 1024  # entries of a constant that is still written out
TABLE, INITIALIZER = "tensorflow.lookup.StaticHashTable", "tensorflow.lookup.KeyValueTensorInitializer"


def as_constant(source: Source, scope: ast.AST, owner: str) -> Fix | None:
    """The table that is made and used in `scope` under the name `owner` (`table`, `self.table`) becomes a constant whose last
    entry is the default, and each look-up a tf.gather. None where it is made otherwise, or used in another way.

    Keys are whole numbers from 0 on, written in the text; so are the values and the default.
    """
    makings = [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and ast.unparse(node.targets[0]) == owner
    ]
    tf = edits.module_name(source, "tensorflow")
    if len(makings) != 1 or tf is None:
        return None
    made = _constant(source, makings[0], tf)
    if made is None:
        return None
    text, last = made
    changes: list[Edit] = [edits.replace(source, makings[0], text)]
    for node in ast.walk(scope):
        if _is(node, owner) and isinstance(getattr(node, "ctx", None), ast.Load):
            use = _use(source, node)
            if use is None:
                return None
            whole, keys = use
            inside = f"({keys} < 0) | ({keys} >= {last})"
            changes.append(edits.replace(source, whole, f"{tf}.gather({owner}, {tf}.where({inside}, {last}, {keys}))"))
    return Fix("unsafe", "a constant, with the default as its last entry", tuple(changes)) if len(changes) > 1 else None


def _is(node: ast.AST, owner: str) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == owner


def _use(source: Source, node: ast.AST) -> tuple[ast.expr, str] | None:
    """The look-up that a use of the table is part of, and the text of its keys; None where it is no look-up, or its keys
    are more than a name, which would be computed three times."""
    above = source.parents.get(node)
    keys: ast.expr | None = None
    whole: ast.AST | None = None
    if isinstance(above, ast.Subscript) and above.value is node:
        whole, keys = above, above.slice
    elif isinstance(above, ast.Attribute) and above.attr == "lookup":
        whole = source.parents.get(above)
        if isinstance(whole, ast.Call) and whole.func is above and len(whole.args) + len(whole.keywords) == 1:
            keys = _argument(whole, 0, "keys")
    if not isinstance(whole, ast.expr) or not isinstance(keys, ast.Name | ast.Attribute):
        return None
    return whole, ast.unparse(keys)


def _constant(source: Source, made: ast.expr, tf: str) -> tuple[str, int] | None:
    """`tf.constant([10, -1, 20, -1])` for a table of {0: 10, 2: 20} and the default -1, and the place of the default."""
    resolve = source.names.resolve
    if not isinstance(made, ast.Call) or resolve(made.func) != TABLE:
        return None
    filled, default = _argument(made, 0, "initializer"), _argument(made, 1, "default_value")
    if not isinstance(filled, ast.Call) or resolve(filled.func) != INITIALIZER or default is None:
        return None
    keys, values = (_argument(filled, place, name) for place, name in enumerate(("keys", "values")))
    pairs = dict(zip(_numbers(source, keys), _numbers(source, values), strict=False))
    if not pairs or len(pairs) != len(list(_numbers(source, values))) or _number(default) is None:
        return None
    if any(type(key) is not int or not 0 <= key < LONGEST for key in pairs):
        return None
    last = max(map(int, pairs)) + 1
    entries = [*(pairs.get(place, _number(default)) for place in range(last)), _number(default)]
    dtype = _argument(filled, 3, "value_dtype") or _dtype(values)
    return f"{tf}.constant({entries}{f', {edits.text(source, dtype)}' if dtype is not None else ''})", last


def _numbers(source: Source, node: ast.expr | None) -> Iterator[int | float]:
    """Those of `[1, 2]` or `tf.constant([1, 2])`; nothing where one is no number in the text."""
    if isinstance(node, ast.Call) and source.names.resolve(node.func) == "tensorflow.constant" and node.args:
        node = node.args[0]
    if isinstance(node, ast.List | ast.Tuple):
        numbers = [_number(item) for item in node.elts]
        if all(number is not None for number in numbers):
            yield from (number for number in numbers if number is not None)


def _number(node: ast.expr) -> int | float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) in (int, float) else None


def _dtype(values: ast.expr | None) -> ast.expr | None:
    return _argument(values, 1, "dtype") if isinstance(values, ast.Call) else None


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    return call.args[place] if place < len(call.args) else keyword(call, name)
