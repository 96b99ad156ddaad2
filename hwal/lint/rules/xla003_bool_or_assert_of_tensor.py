"""bool-or-assert-of-tensor

What: `bool(t)`, `assert t`, `t in [...]`, a comprehension's `if t`, and `any`, `all`, `max`, `min`, `sorted` over tensors.

Why: AutoGraph converts statements, not these: Python asks a symbolic tensor for its truth, and TensorFlow raises
    OperatorNotAllowedInGraphError, with and without AutoGraph.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        assert tf.reduce_all(x > 0.0)
        return tf.math.log(x)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        tf.debugging.assert_positive(x)
        return tf.math.log(x)

Fix safety: unsafe: XLA drops assertions, so that a wrong value passes where eager code stopped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.events import Trace

HELP = {
    "bool": "keep the tensor: tf.where(condition, a, b), or `if` under tf.function",
    "assert": "tf.debugging.Assert (XLA drops it), or an assertion about x.shape",
    "in": "tf.reduce_any(tf.equal(t, values))",
    "comprehension": "tf.where, or a mask",
    "any": "tf.reduce_any or tf.reduce_all of a stacked tensor",
    "max": "tf.maximum, tf.minimum or tf.reduce_max",
    "sorted": "tf.sort, or tf.gather by tf.argsort",
}


def _check(trace: Trace) -> Iterator[Finding]:
    source = trace.function.module
    for test in trace.tensor_tests(*HELP):
        fix = None
        parent = source.parents.get(test.node)
        if test.kind == "assert" and isinstance(test.node, ast.Assert) and (tf := edits.module_name(source, "tensorflow")):
            condition = edits.text(source, test.node.test)
            fix = Fix(
                "unsafe",
                "XLA drops assertions",
                (edits.replace(source, test.node, f"{tf}.debugging.Assert({condition}, [{condition}])"),),
            )
        elif test.kind == "bool" and isinstance(parent, ast.If) and trace.autograph and isinstance(test.node, ast.Call):
            fix = Fix(
                "unsafe",
                "AutoGraph converts the `if`",
                (edits.replace(source, test.node, edits.text(source, test.node.args[0])),),
            )
        yield Finding(
            test.node,
            f"`{test.kind}` asks a symbolic tensor for its truth, which raises while tracing",
            HELP[test.kind],
            fix=fix,
        )


RULE = Rule("XLA003", "bool-or-assert-of-tensor", "error", _check, __doc__, fix="unsafe")
