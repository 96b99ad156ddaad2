"""built-outside-strategy-scope

What: A model that is built outside `strategy.scope()` in a program with a TPUStrategy.

Why: Its variables are on the host, and not copied to the TPU's cores: fit raises "Variable was not created under the
    strategy's scope".

Bad:
    import keras
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(tf.ones([8, 4]), tf.ones([8, 1]))

Good:
    import keras
    import tensorflow as tf

    strategy = tf.distribute.TPUStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(tf.ones([8, 4]), tf.ones([8, 1]))

Fix safety: unsafe: under a strategy, initial values may be drawn otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Edit, Finding, Fix, Rule, tpu_error
from hwal.lint.file import File

MODELS = (
    "keras.Sequential",
    "keras.models.Sequential",
    "keras.Model",
    "keras.models.Model",
    "keras.models.load_model",
    "keras.models.clone_model",
)


def _check(file: File) -> Iterator[Finding]:
    if not file.on_tpu or not any(True for _ in file.method_calls("fit")):
        return
    strategies = {}
    for name, call, function in file.named_calls:
        parent = file.source.parents.get(call)
        if name.endswith("TPUStrategy") and isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            strategies[function] = parent.targets[0].id
    for name, call, function in file.named_calls:
        built = (name in MODELS or name.startswith("keras.applications.")) and function in strategies
        if built and not _in_scope(file, call):
            scope = f"with {strategies[function]}.scope():"
            why = "a model built outside the strategy's scope: its variables are not on the TPU"
            yield Finding(call, why, scope, fix=_fix(file, call, strategies[function]))


def _in_scope(file: File, call: ast.Call) -> bool:
    around = (node for node in file.enclosing(call, ast.With) if isinstance(node, ast.With))
    return any("scope" in ast.unparse(item.context_expr) for node in around for item in node.items)


def _fix(file: File, call: ast.Call, strategy: str) -> Fix | None:
    """Puts the statement into a `with`."""
    statement = file.source.parents.get(call)
    if not isinstance(statement, ast.Assign):
        return None
    line, column, end_line, end = edits.span(file.source, statement)
    indent = " " * column
    body = edits.text(file.source, statement).replace("\n", "\n    ")
    if '"""' in body:
        return None
    return Fix(
        "unsafe", "inside the scope", (Edit(line, column, end_line, end, f"with {strategy}.scope():\n{indent}    {body}"),)
    )


RULE = Rule("TPU504", "built-outside-strategy-scope", tpu_error("info"), _check, __doc__, scope="module", fix="unsafe")
