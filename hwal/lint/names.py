"""Names: what an expression such as `tnp.take` or `w` means, through the imports of its file."""

from __future__ import annotations

import ast

from hwal.lint.tables.api import ALIASES

ROOTS = ("tensorflow", "keras", "torch", "torch_xla", "numpy", "hwal", "random", "time", "os", "transformers")
"""Packages whose names mean something to a rule."""

KERAS = ("tensorflow.keras.", "tf_keras.", "keras.api.", "keras.src.", "tensorflow.python.keras.")


class Names:
    """The names that a file's import statements bind, wherever they stand."""

    def __init__(self) -> None:
        self._bound: dict[str, str] = {}
        self._known: dict[str, str | None] = {}

    def add(self, node: ast.Import | ast.ImportFrom, package: str = "") -> None:
        """`package` is the dotted package of the file, for relative imports."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    self._bound[alias.asname] = alias.name
                else:
                    self._bound[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
            return
        module = node.module or ""
        if node.level:
            parts = package.split(".") if package else []
            parts = parts[: len(parts) - node.level + 1]
            module = ".".join([*parts, module] if module else parts)
        for alias in node.names:
            self._bound[alias.asname or alias.name] = f"{module}.{alias.name}" if module else alias.name

    def alias(self, name: str, node: ast.Attribute) -> None:
        """`linalg = tf.linalg`, which makes a name of its own for what another has already."""
        dotted = ast.unparse(node)
        first, _, rest = dotted.partition(".")
        if first in self._bound and name not in self._bound and dotted.replace(".", "").isidentifier():
            self._bound[name] = f"{self._bound[first]}.{rest}"

    def __contains__(self, name: str) -> bool:
        return name in self._bound

    def imported(self, name: str) -> str | None:
        """What a bare name was imported as, before aliases of TensorFlow are taken together."""
        return self._bound.get(name)

    def packages(self) -> set[str]:
        return {name.partition(".")[0] for name in self._bound.values()}

    def resolve(self, node: ast.AST) -> str | None:
        """The canonical dotted name of an expression, None where it begins with no import: `tf.math.reduce_sum` is
        `tensorflow.reduce_sum`, `tf.keras.layers.Layer` is `keras.layers.Layer`."""
        if isinstance(node, ast.Name):
            dotted = node.id
            first = self._bound.get(dotted)
            rest = ""
        else:
            parts: list[str] = []
            while isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            if not isinstance(node, ast.Name):
                return None
            first = self._bound.get(node.id)
            parts.reverse()
            rest = "." + ".".join(parts)
            dotted = node.id + rest
        if first is None:
            return None
        if dotted not in self._known:
            self._known[dotted] = canonical(first + rest)
        return self._known[dotted]


def canonical(name: str) -> str:
    """One name for all of a function's public names."""
    for prefix in KERAS:
        if name.startswith(prefix):
            return canonical("keras." + name[len(prefix) :])
    if name.startswith("keras.ops."):
        rest = name[len("keras.ops.") :]
        module, _, last = rest.partition(".")
        return f"keras.ops.{last}" if last and module in ("numpy", "math", "linalg", "nn", "core") else name
    if name.startswith("keras.backend."):
        return name
    if not name.startswith("tensorflow."):
        return name
    short = name[len("tensorflow.") :].removeprefix("compat.v2.")
    short = ALIASES.get(short, short)
    if short.startswith("compat.v1."):
        inner = short[len("compat.v1.") :]
        if inner.startswith("keras."):
            return inner
        if inner not in OLD_MEANING:
            return f"tensorflow.{ALIASES.get(inner, inner)}"
    return f"tensorflow.{short}"


OLD_MEANING = ("placeholder", "Session", "setdiff1d", "Print", "disable_v2_behavior", "disable_eager_execution", "get_variable")
"""Names that exist in compat.v1 alone, and keep their prefix."""
