"""Seldom: what a step does every so many steps only, by the conditions around it, or after it in a closure."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence, Set

from hwal.lint.source import Source

COUNTER = re.compile(
    r"(?:step|epoch|iter|iteration|batch|idx|index|count|counter|update|tick)s?$|^(?:it|i|j|k|n|t)$", re.IGNORECASE
)
"""The last part of a name that counts, in a modulus."""

LATER = frozenset({"add_step_closure", "add_done_callback", "submit", "Thread", "Timer"})
"""Functions that keep what they are given, and call it apart from the step."""

CALLING = frozenset(
    {
        "map", "filter", "sorted", "sort", "min", "max", "reduce", "starmap", "groupby", "apply", "tree_map", "map_structure",
        "step", "register_hook", "register_forward_hook", "register_full_backward_hook",
}
)  # fmt: skip
"""Functions and methods that call what they are given within the step."""

OTHER_STEPS = re.compile(r"sched|prof|warmup|env|^lr", re.IGNORECASE)
"""The names of what has a `step` and is no optimizer."""

Conditions = Mapping[str, ast.expr]
"""Name -> the one expression that is assigned to it: `log = step % 100 == 0`."""


def seldom(node: ast.AST, source: Source, counters: Set[str], conditions: Conditions) -> bool:
    """Whether a node of step code runs every so many steps only, or in a closure that is called apart from the step.
    `counters`: the names that are known to count steps. A condition under which the optimizer steps too is none: what is
    counted there are the micro batches of a step."""

    def known(test: ast.expr, truth: bool) -> bool:
        return implied(test, truth, counters, conditions)

    child, current = node, source.parents.get(node)
    while current is not None:
        if isinstance(current, ast.If | ast.IfExp):
            body, orelse = (current.body, current.orelse) if isinstance(current, ast.If) else ([current.body], [current.orelse])
            for block, truth in ((body, True), (orelse, False)):
                rare = child in block and (known(current.test, truth) or _ends_loop(current, block, source, counters))
                if rare and not _takes_step(block):
                    return True
        elif isinstance(current, ast.BoolOp) and child in current.values:
            met = isinstance(current.op, ast.And)
            if any(known(test, met) for test in current.values[: current.values.index(child)]):
                return True
        elif isinstance(current, ast.Lambda | ast.FunctionDef) and _later(current, source):
            return True
        before = _before(child, current)
        for place, statement in enumerate(before):
            rare = isinstance(statement, ast.If) and _leaves(statement.body) and known(statement.test, False)
            if rare and not _takes_step(_block(child, current)[place + 1 :]):
                return True
        child, current = current, source.parents.get(current)
    return False


def implied(test: ast.expr, truth: bool, counters: Set[str], conditions: Conditions, depth: int = 0) -> bool:
    """Whether a test that turns out true, or false, says that this is one of many steps: `step % 100 == 0`."""
    if isinstance(test, ast.Name) and depth < 3 and (held := conditions.get(test.id)) is not None:
        return implied(held, truth, counters, conditions, depth + 1)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return implied(test.operand, not truth, counters, conditions, depth)
    if isinstance(test, ast.BoolOp):
        parts = [implied(part, truth, counters, conditions, depth) for part in test.values]
        return any(parts) if isinstance(test.op, ast.And) == truth else all(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        sides = (test.left, test.comparators[0])
        if isinstance(test.ops[0], ast.Eq if truth else ast.NotEq):
            return any(_modulus(side, counters) for side in sides) or _one_step(*sides, counters)
        below = isinstance(test.ops[0], ast.Lt if truth else ast.GtE)
        one = isinstance(sides[1], ast.Constant) and sides[1].value == 1
        return below and one and _modulus(sides[0], counters)  # step % 100 < 1
    return not truth and _modulus(test, counters)


def _modulus(node: ast.expr, counters: Set[str]) -> bool:
    """`step % 100`, of a counter and a number that is no 1."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return False
    if isinstance(node.right, ast.Constant) and node.right.value == 1:
        return False
    return any(name in counters or COUNTER.search(name) for name in map(_last, ast.walk(node.left)) if name)


def _one_step(left: ast.expr, right: ast.expr, counters: Set[str]) -> bool:
    """Whether `step == 10` or `step + 1 == total` says which step it is: a counter and what counts nothing."""
    for side, other in ((left, right), (right, left)):
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub) and isinstance(side.right, ast.Constant):
            side = side.left
        names = {_last(node) for node in ast.walk(other)}
        certain = _last(side) in counters or not any(isinstance(node, ast.Subscript) for node in ast.walk(other))
        if _step(side, counters) and certain and not names & {*counters, _last(side)}:
            return True
    return False


def _step(node: ast.expr, counters: Set[str]) -> bool:
    """A counter by itself: `step == 10` is one step. One of epochs is many."""
    name = _last(node)
    return bool(name) and "epoch" not in name.lower() and (name in counters or name.lower().endswith("step"))


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _block(child: ast.AST, parent: ast.AST) -> list[ast.stmt]:
    """The block of a statement that one of its parts stands in."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and child in block:
            return block
    return []


def _before(child: ast.AST, parent: ast.AST) -> list[ast.stmt]:
    """The statements of a block that come before one of them."""
    block = _block(child, parent)
    return [statement for place, statement in enumerate(block) if child in block[place + 1 :]]


def _takes_step(block: Sequence[ast.AST]) -> bool:
    """Whether the optimizer steps in a block."""
    for part in block:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "optimizer_step":
                    return True
                if node.func.attr == "step" and not OTHER_STEPS.search(_last(node.func.value)):
                    return True
    return False


def _ends_loop(node: ast.If | ast.IfExp, block: Sequence[ast.AST], source: Source, counters: Set[str]) -> bool:
    """Whether a block that a counter decides on is the last that its loop does: `if step >= 1000: …; break`."""
    if not block or not isinstance(block[-1], ast.Break | ast.Return | ast.Raise):
        return False
    loop: ast.AST | None = source.parents.get(node)
    while loop is not None and not isinstance(loop, ast.For | ast.While):
        loop = source.parents.get(loop)
    if loop is None:
        return False
    stored = {inner.id for inner in ast.walk(loop) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}
    return bool(stored & counters & {_last(inner) for inner in ast.walk(node.test)})


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Continue | ast.Return | ast.Raise | ast.Break)


def _later(node: ast.Lambda | ast.FunctionDef, source: Source) -> bool:
    """Whether a function inside a step is called apart from it: one that is handed to what calls it later, or a lambda of
    which nothing in sight says that it is called at once."""
    above = source.parents.get(node)
    if isinstance(node, ast.FunctionDef):
        inside = not isinstance(above, ast.Module | ast.ClassDef)
        handed = (call for call, _ in source.calls if _last(call.func) in LATER)
        return inside and any(node.name in map(_last, _given(call)) for call in handed)
    if isinstance(above, ast.keyword):
        above = source.parents.get(above)
    if isinstance(above, ast.Call):
        return above.func is not node and not _calls(above.func, source)
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):  # read = lambda t: t.item()
        name = above.targets[0].id
        return not any(isinstance(call.func, ast.Name) and call.func.id == name for call, _ in source.calls)
    return True


def _calls(func: ast.expr, source: Source) -> bool:
    """Whether a function calls, at once, a function that it is given."""
    name = _last(func)
    own = source.top.get(name) if isinstance(func, ast.Name) else None
    if own is not None:
        given = {parameter.arg for parameter in own.parameters}
        return any(isinstance(call.func, ast.Name) and call.func.id in given for call in own.calls)
    return name in CALLING


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]
