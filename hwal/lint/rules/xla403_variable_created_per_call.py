"""variable-created-per-call

What: `tf.Variable`, a Keras layer or a random generator made in traced code.

Why: A traced function may create variables in its first call only: "tf.function only supports singleton tf.Variables".

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        w = tf.Variable(tf.ones([4]))
        return w * x

Good:
    import tensorflow as tf

    w = tf.Variable(tf.ones([4]))

    @tf.function(jit_compile=True)
    def f(x):
        return w * x
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace

MAKERS = (
    "tensorflow.Variable",
    "tensorflow.random.Generator.from_seed",
    "tensorflow.random.Generator.from_non_deterministic_state",
)
WEIGHTLESS = (
    "Activation",
    "ReLU",
    "LeakyReLU",
    "Softmax",
    "Flatten",
    "Reshape",
    "Add",
    "Concatenate",
    "Multiply",
    "Subtract",
    "Average",
    "Lambda",
    "Permute",
    "ZeroPadding",
    "Cropping",
    "UpSampling",
    "MaxPool",
    "AveragePool",
    "GlobalAverage",
    "GlobalMax",
    "Dot",
    "Maximum",
    "Minimum",
    "Masking",
    "RepeatVector",
    "Resizing",
    "Rescaling",
)


def _check(trace: Trace) -> Iterator[Finding]:
    source = trace.function.module
    if trace.function.name in ("build", "__init__", "_build"):
        return
    for call in trace.calls:
        name = call.name or ""
        layer = (
            name.startswith("keras.layers.")
            and name[13:14].isupper()
            and not name[13:].startswith(WEIGHTLESS)
            and name.count(".") == 2
        )
        if (name in MAKERS or layer) and not _guarded(source.parents, call.node):
            if layer and (trace.context.assumed or name == "keras.layers.Input" or name == "keras.layers.InputSpec"):
                continue
            yield Finding(
                call.node,
                f"{name.rpartition('.')[2]} is made anew in each call of traced code",
                "make it once: in __init__ or build, or outside",
            )


def _guarded(parents: dict[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether an `if self.w is None` around it makes it happen once."""
    current = parents.get(node)
    while current is not None and not isinstance(current, ast.FunctionDef | ast.Lambda):
        if isinstance(current, ast.If | ast.With):
            return True
        current = parents.get(current)
    return False


RULE = Rule("XLA403", "variable-created-per-call", "error", _check, __doc__)
