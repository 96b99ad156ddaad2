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
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.families import family


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
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


def _lone(trace: Trace, statement: ast.Expr) -> bool:
    return bool(trace.function.module.lines[statement.lineno - 1].strip())


RULE = Rule("XLA102", "host-op", "error", _check, __doc__, fix="unsafe")
