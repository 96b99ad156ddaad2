"""side-effect-at-trace-time

What: `print`, `time.time`, Python's and NumPy's random numbers, and changes of global lists in traced code.

Why: They happen once, while the function is traced, and never again: a time or a random number becomes a constant, and
    `print` shows `Tensor("x:0", shape=(4,))`. A `print` of no tensor, which tells of a trace, is information.

Bad:
    import random
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x + random.random()

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x + tf.random.stateless_uniform([], seed=[1, 2])
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace
from hwal.lint.values import PYTHON, holds_tensor

CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "datetime.datetime.now", "time.sleep")


def _check(trace: Trace) -> Iterator[Finding]:
    if trace.context.assumed:
        return
    for call in trace.calls:
        name = call.name or ""
        if name in CLOCKS or name.startswith(("random.", "numpy.random.")):
            yield Finding(
                call.node,
                f"{name} runs once, while this is traced, and is a constant from then on",
                "pass it as a tensor, or use tf.random.stateless_…",
            )
        elif isinstance(call.node.func, ast.Name) and name == "" and call.node.func.id == "print":
            if any(holds_tensor(value) or (value.kind == PYTHON and value.data) for value in call.args):
                what = "print shows a symbolic tensor, once, while this is traced"
                yield Finding(call.node, what, "return the value, and print it outside")
            else:  # print("tracing", x.shape) is often meant: it changes no result
                yield Finding(
                    call.node, "print runs once, while this is traced", "return the value, and print it outside", "info"
                )
        elif call.method in ("append", "extend", "add", "update") and call.owner.what == "global":
            yield Finding(
                call.node, "a global changes once, while this is traced, and keeps a symbolic tensor", "return the value"
            )


RULE = Rule("XLA402", "side-effect-at-trace-time", "warning", _check, __doc__)
