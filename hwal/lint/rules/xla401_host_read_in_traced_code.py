"""host-read-in-traced-code

What: `.numpy()`, `.item()`, `np.…(t)` of a tensor in traced code; a list or an array at the place that a tensor gives;
    `float(t)`, `int(t)` where AutoGraph is off.

Why: A symbolic tensor has no value while its function is traced.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x * tf.reduce_sum(x).numpy()

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def f(x):
        return x * tf.reduce_sum(x)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.events import Trace
from hwal.lint.values import ARGUMENT, EAGER, LIST, NUMPY, PYTHON, TENSORS, Value, holds_tensor

NUMBERS = ("math.", "cmath.", "bisect.", "heapq.", "statistics.", "decimal.", "fractions.")
"""Modules of Python's that compute with numbers or compare them; math.prod multiplies whatever it is given."""

METHODS = ("numpy", "item", "tolist", "eval", "__array__")


def _check(trace: Trace) -> Iterator[Finding]:
    for call in trace.calls:
        if call.method in METHODS and call.owner.is_tensor:
            yield Finding(
                call.node,
                f"`.{call.method}()` of a symbolic tensor, which has no value yet",
                "compute with the tensor, and read it outside the traced function",
            )
        elif call.name and call.name.startswith("numpy.") and any(holds_tensor(value) for value in call.args):
            if not call.name.rpartition(".")[2].startswith(("shape", "ndim", "size")):
                yield Finding(
                    call.node,
                    f"np.{call.name[6:]} wants the numbers of a symbolic tensor, which has none yet",
                    "the same function of tf or keras.ops",
                )
        elif call.name and call.name.startswith(NUMBERS) and call.name != "math.prod" and _numberless(trace, call.args):
            yield Finding(
                call.node,
                f"{call.name} wants the number of a symbolic tensor, which has none yet",
                "the same function of tf or keras.ops",
            )
        elif (
            call.short == "constant"
            and (value := call.argument(0, "value")) is not None
            and holds_tensor(value)
            and value.what != EAGER
        ):
            yield Finding(
                call.node,
                "tf.constant wants the numbers of a symbolic tensor, which has none yet",
                "tf.convert_to_tensor, tf.cast or tf.stack",
            )
        elif not trace.autograph and isinstance(call.node.func, ast.Name) and call.name is None and call.args:
            word = call.node.func.id
            if word in ("float", "int") and call.args[0].is_tensor:
                yield Finding(
                    call.node,
                    f"{word}() of a symbolic tensor, and AutoGraph is off here",
                    "tf.cast, or read it in a callback",
                )
    for part in trace.subscripts:
        if _python(part.base) and any(_symbolic(value) for value in [*part.indices, *(v for _, v in part.bounds)]):
            yield Finding(
                part.node,
                "Python's own list, dict or array wants the number of a symbolic tensor, which has none yet",
                "tf.gather of a stacked tensor; for i in range(…) where the places are known",
            )


def _numberless(trace: Trace, values: list[Value]) -> bool:
    """Whether one of some values is a tensor of this trace. An argument of a function that is only assumed to be compiled, and
    what is computed from it, may be a number."""
    certain = (v for v in values if holds_tensor(v) and v.what not in (EAGER, ARGUMENT))
    return any(not (value.given and trace.context.assumed) for value in certain)


def _python(base: Value) -> bool:
    """Whether a value is a list, dict or array of Python's or NumPy's for certain."""
    if base.kind == NUMPY:
        return True
    return base.kind == PYTHON and (base.items is not None or base.what in (TENSORS, LIST, "global", "dict"))


def _symbolic(value: Value) -> bool:
    """Whether an index is a tensor of this trace: an argument, and what is computed from it, may be a number."""
    return value.is_tensor and value.what != EAGER and not value.given


RULE = Rule("XLA401", "host-read-in-traced-code", "error", _check, __doc__)
