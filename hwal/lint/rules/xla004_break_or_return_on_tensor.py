"""break-or-return-on-tensor

What: `break` or `return` that a tensor decides, in a loop that Python unrolls; `return` in a loop over tensors.

Why: AutoGraph cannot leave a Python loop on a condition that only a run knows, nor return from inside `tf.while_loop`: it
    raises NotImplementedError.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        for _ in range(5):
            if tf.reduce_sum(x) > 50.0:
                break
            x = x * 2.0
        return x

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        for _ in tf.range(5):
            if tf.reduce_sum(x) > 50.0:
                break
            x = x * 2.0
        return x
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.autograph:
        return
    for test in trace.tensor_tests("if"):
        loops = test.place.loops
        if not isinstance(test.node, ast.If) or not loops or not trace.function.node.body:
            continue
        statements = [*test.node.body, *test.node.orelse]
        returns = leaves(statements, ast.Return)
        if loops[-1] == "python" and (returns or leaves(statements, ast.Break)):
            word = "return" if returns else "break"
            yield Finding(
                test.node,
                f"`{word}` on a tensor's value in a loop that Python unrolls: AutoGraph cannot convert it",
                "loop over tf.range, or keep a flag and use tf.where",
            )
        elif loops[-1] == "tensor" and returns:
            yield Finding(
                test.node,
                "`return` inside a loop over tensors: AutoGraph cannot convert it",
                "assign, `break`, and return after the loop",
            )
    inside = {id(inner) for test in trace.tensor_tests("if") for inner in ast.walk(test.node)}
    for node, _, place in trace.returns:
        if isinstance(node, ast.Return) and place.loops and place.loops[-1] == "tensor" and id(node) not in inside:
            yield Finding(
                node,
                "`return` inside a loop over tensors: AutoGraph cannot convert it",
                "assign, `break`, and return after the loop",
            )


def leaves(statements: list[ast.stmt], kind: type[ast.stmt]) -> bool:
    """Whether a block breaks out of the loop around it, or returns."""
    for statement in statements:
        if isinstance(statement, kind):
            return True
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) or (
            kind is ast.Break and isinstance(statement, ast.For | ast.While)
        ):
            continue
        for field in ("body", "orelse", "finalbody"):
            if leaves(getattr(statement, field, None) or [], kind):
                return True
    return False


RULE = Rule("XLA004", "break-or-return-on-tensor", "error", _check, __doc__)
