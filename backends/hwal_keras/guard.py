"""Guard: variables that were made outside of rt.scope(), and by which line of the script."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from hwal.errors import ScriptError
from hwal.watch.spot import Library, Signs


class Guard:
    """Notes the line of the script at which each variable is made while the strategy's scope is not open.

    Over several replicas a variable of outside is on one of them alone: training fails far from its cause, if it fails.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._strategy: Any = None
        self._lines: dict[int, str] = {}
        self._library = Library()

    def open(self, strategy: Any) -> None:
        self._strategy = strategy
        self._stack.enter_context(tf.variable_creator_scope(self._made))

    def close(self) -> None:
        self._stack.close()

    def _made(self, next_creator: Any, **options: Any) -> Any:
        variable = next_creator(**options)
        if not _in_scope(self._strategy):
            self._lines[id(variable)] = self._library.spot(sys._getframe(1), Signs()).line
        return variable

    def check(self, thing: Any, strategy: Any) -> None:
        """Raises ScriptError for a model or optimizer with variables from outside, where several replicas train it."""
        if strategy.num_replicas_in_sync == 1:
            return
        for variable, owner in _variables(thing):
            inner = getattr(variable, "value", variable)
            if strategy.extended.variable_created_in_scope(inner):
                continue
            line = self._lines.get(id(inner))
            raise ScriptError(
                f"{owner} was built outside of rt.scope()",
                where=f"{line}: {variable.path}" if line else variable.path,
                why=f"its variables are on one device, and {strategy.num_replicas_in_sync} replicas train it",
                hint="with rt.scope(): model = …; model.compile(…, **rt.compile_options())",
            )


def _variables(thing: Any) -> list[tuple[Any, str]]:
    """Those of a model, of its metrics and of its optimizer, or of an optimizer; each with whose it is."""
    found = []
    for metric in getattr(thing, "metrics", ()):
        found += [(variable, f"the metric {metric.name}") for variable in metric.variables]
    optimizer = getattr(thing, "optimizer", None)
    if optimizer is not None and optimizer.built:
        found += [(variable, f"the optimizer {optimizer.name}") for variable in optimizer.variables]
    known = {id(variable) for variable, _ in found}
    own = f"{type(thing).__name__} {thing.name}"
    return [(variable, own) for variable in thing.variables if id(variable) not in known] + found


def _in_scope(strategy: Any) -> bool:
    return tf.distribute.has_strategy() and tf.distribute.get_strategy() is strategy
