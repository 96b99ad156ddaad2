"""lookup-table

What: A lookup table.

Why: Tables live on the host; XLA has no kernel for them.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(keys):
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20]), -1)
        return table.lookup(keys)

Good:
    import tensorflow as tf

    TABLE = tf.constant([-1, 10, 20])

    @tf.function(jit_compile=True)
    def f(keys):
        return tf.gather(TABLE, keys)

Fix safety: unsafe: a table of whole numbers from 0 on, all in the text, becomes a constant with the default as its last entry,
    and a look-up a tf.gather; what else makes or takes the table is not looked at in other files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace
from hwal.lint.families import family
from hwal.lint.lookup import as_constant


def _check(trace: Trace) -> Iterator[Finding]:
    if not trace.context.compiled:
        return
    for call in trace.calls:
        if family(call.short) == "lookup" and "Initializer" not in call.short:
            yield Finding(
                call.node,
                f"tf.{call.short} is a table on the host, which XLA cannot compile",
                HELP,
                fix=_fix(trace, _target(trace, call.node)),
            )
        elif call.method == "lookup" and isinstance(call.node.func, ast.Attribute):
            name = _origin(trace, call.node.func.value)
            if name and name.startswith("tensorflow.lookup."):
                yield Finding(call.node, LOOK_UP, HELP, fix=_fix(trace, call.node.func.value))

    for part in trace.subscripts:
        name = _origin(trace, part.node.value)
        if name and name.startswith("tensorflow.lookup.") and any(index.is_tensor for index in part.indices):
            yield Finding(part.node, LOOK_UP, HELP, fix=_fix(trace, part.node.value))


LOOK_UP = "a look-up in a table on the host, which XLA cannot compile"
HELP = "tf.gather from a constant for dense keys; else look up in the input pipeline"


def _origin(trace: Trace, node: ast.expr) -> str | None:
    """The function whose result a global, or an attribute of self, holds."""
    source = trace.function.module
    made: ast.expr | None = None
    if isinstance(node, ast.Name):
        made = source.globals.get(node.id)
    elif isinstance(node, ast.Attribute) and trace.function.class_ is not None:
        made = trace.function.class_.attributes.get(node.attr)
    return source.names.resolve(made.func) if isinstance(made, ast.Call) else None


def _target(trace: Trace, call: ast.Call) -> ast.expr | None:
    """What a table is called where it is made."""
    above = trace.function.module.parents.get(call)
    return above.targets[0] if isinstance(above, ast.Assign) else None


def _fix(trace: Trace, owner: ast.expr | None) -> Fix | None:
    source, class_ = trace.function.module, trace.function.class_
    if isinstance(owner, ast.Name):
        return as_constant(source, source.tree if owner.id in source.globals else trace.function.node, owner.id)
    if isinstance(owner, ast.Attribute) and class_ is not None:
        return as_constant(source, class_.node, ast.unparse(owner))
    return None


RULE = Rule("XLA104", "lookup-table", "error", _check, __doc__, fix="unsafe")
