"""python-scalar-argument-varies

What: A traced function that is called in a loop with the loop's Python number.

Why: Each new Python number is a new trace and a new compilation (4 values, 4 compilations); a tensor is not.

Bad:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(x, i):
        return x * i

    for i in range(100):
        step(tf.ones([4]), i)

Good:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(x, i):
        return x * i

    for i in tf.range(100):
        step(tf.ones([4]), i)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    roots = {function for function, context in file.contexts.roots.items() if context.why == "tf.function"}
    if not roots:
        return
    for call, function in file.source.calls:
        target = file.project.called(call.func, function, file.source)
        if target in roots and any(isinstance(a, ast.Name) for a in call.args):
            for loop in file.enclosing(call, ast.For):
                if isinstance(loop, ast.For):
                    names = _numbers(loop)
                    for arg in call.args:
                        if isinstance(arg, ast.Name) and arg.id in names:
                            yield Finding(
                                arg,
                                f"`{arg.id}` is a Python number that changes with each turn: each value compiles again",
                                f"tf.constant({arg.id}), or keep it in a tf.Variable",
                            )


def _numbers(loop: ast.For) -> set[str]:
    """The Python numbers of `for i in range(…)` and `for i, x in enumerate(…)`."""
    call = loop.iter
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        if call.func.id == "range" and isinstance(loop.target, ast.Name):
            return {loop.target.id}
        if call.func.id == "enumerate" and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
            return {loop.target.elts[0].id}
    return set()


RULE = Rule("XLA303", "python-scalar-argument-varies", "warning", _check, __doc__, scope="module")
