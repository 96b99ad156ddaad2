"""host-op

What: An operator that runs on the host only: `tf.print`, `tf.py_function`, `tf.numpy_function`, files, encoded images,
    summaries.

Why: Compiled code runs on the device, and XLA has no kernel for them. A summary is dropped where no writer is the default.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        tf.print("mean", tf.reduce_mean(x))
        return x * 2.0

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x * 2.0, tf.reduce_mean(x)

Fix safety: unsafe: the line that prints is taken away.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.families import family


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    yield from _datasets(trace)
    for call in trace.calls:
        short = call.short

        if family(short) == "host":
            statement = trace.function.module.parents.get(call.node)
            fix = None
            if short == "print" and isinstance(statement, ast.Expr) and _lone(trace, statement):
                fix = Fix("unsafe", "nothing is printed", (edits.replace(trace.function.module, statement, "pass"),))
            yield Finding(
                call.node,
                f"tf.{short} runs on the host, and XLA compiles none of that",
                "return the value and use it outside the compiled function",
                fix=fix,
            )
        elif (
            short.startswith("summary.")
            and call.node.args
            and short.rpartition(".")[2] in ("scalar", "write", "image", "histogram", "text", "audio")
        ):
            written = any(other.method in ("as_default", "set_as_default") for other in trace.calls)
            yield Finding(
                call.node,
                f"tf.{short} writes to a file on the host",
                "return the value and write it outside the compiled function",
                None if written else "info",
            )


ITERATORS = re.compile(r"^(?:\w*_)?(?:iterator|iter|it|dataset|ds)$")
"""Names of arguments that are iterators or datasets, where code takes a batch out of them."""


def _datasets(trace: Trace) -> Iterator[Finding]:
    """Batches that code with a `jit_compile=True` of its own takes out of an iterator or a dataset."""
    if not trace.context.jit:
        return
    names = {name for name in trace.parameters if ITERATORS.match(name)}
    taken: list[tuple[ast.AST, ast.expr]] = []
    for loop in trace.loops:
        if isinstance(loop.node, ast.For):
            taken.append((loop.node, loop.node.iter))
    for call in trace.calls:
        func = call.node.func
        if isinstance(func, ast.Name) and func.id == "next" and call.node.args:
            taken.append((call.node, call.node.args[0]))
        elif isinstance(func, ast.Attribute) and func.attr in ("get_next", "get_next_as_optional"):
            taken.append((call.node, func.value))
    for node, source in taken:
        if isinstance(source, ast.Name) and source.id in names:
            why = f"a batch of `{source.id}` comes from the host's input pipeline, which XLA does not compile"
            yield Finding(node, why, "take the batch outside, and pass it")


def _lone(trace: Trace, statement: ast.Expr) -> bool:
    return bool(trace.function.module.lines[statement.lineno - 1].strip())


RULE = Rule("XLA102", "host-op", "error", _check, __doc__, fix="unsafe")
