"""cond-with-python-bool

What: `tf.cond` on a Python bool.

Why: It raises "pred must not be a Python bool". A Python bool needs no `tf.cond`.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, training=False):
        return tf.cond(training, lambda: x * 0.5, lambda: x)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x, training=False):
        return x * 0.5 if training else x

Fix safety: safe: a Python bool decides the same way in a conditional expression.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Call, Trace
from hwal.lint.source import Source
from hwal.lint.values import PYTHON


def _check(trace: Trace) -> Iterator[Finding]:
    source = trace.function.module
    defaults = trace.function.defaults()
    for call in trace.calls:
        if call.name not in ("tensorflow.cond",):
            continue
        node = call.argument_node(0, "pred")
        value = call.argument(0, "pred")
        default = defaults.get(node.id) if isinstance(node, ast.Name) else None
        plain = value is not None and value.kind == PYTHON
        if (
            plain
            and value is not None
            and (
                (value.known and isinstance(value.const, bool))
                or value.dtype == "bool"
                or (isinstance(default, ast.Constant) and isinstance(default.value, bool))
                or isinstance(node, ast.Compare)
            )
        ):
            yield Finding(
                call.node,
                "tf.cond on a Python bool raises: its condition must be a tensor",
                "a Python conditional: `a if flag else b`",
                fix=_fix(source, call),
            )


def _fix(source: Source, call: Call) -> Fix | None:
    parts = [call.argument_node(0, "pred"), call.argument_node(1, "true_fn"), call.argument_node(2, "false_fn")]
    flag, *functions = parts
    if flag is None or any(part is None for part in functions):
        return None
    texts = []
    for function in functions:
        if isinstance(function, ast.Lambda) and not function.args.args:
            texts.append(f"({edits.text(source, function.body)})")
        elif function is not None:
            texts.append(f"{edits.text(source, function)}()")
    new = f"({texts[0]} if {edits.text(source, flag)} else {texts[1]})"
    return Fix("safe", "a Python bool decides in Python", (edits.replace(source, call.node, new),))


RULE = Rule("XLA105", "cond-with-python-bool", "error", _check, __doc__, fix="safe")
