"""What is an error, a warning or information, as it was measured with TensorFlow 2.21 and libtpu's compiler."""

from __future__ import annotations

import pytest

from hwal.lint import check
from hwal.lint.diagnostic import Target

BRANCHES = """
import tensorflow as tf

@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([4, 3])])
def f(x):
    with {tape}:
        if tf.reduce_sum(x) > 0:
            y = {a}
        else:
            y = {b}
        y = y * 2.0
    return y
"""


@pytest.mark.parametrize(
    ("a", "b", "tape", "severity"),
    [
        ("x[:2]", "x[1:]", "tf.name_scope('n')", "warning"),
        ("x[:2]", "x[1:]", "tf.GradientTape()", "error"),
        ("tf.ones([2])", "tf.ones([3])", "tf.GradientTape()", "warning"),
        ("x[0]", "x", "tf.name_scope('n')", "error"),
        ("x[..., 0]", "x[:, tf.newaxis, 0]", "tf.name_scope('n')", "error"),
        ("x[:, :2][1:3]", "x[2:, 1:]", "tf.GradientTape()", None),
        ("x[0]", "x[tf.argmax(x[:, 0])]", "tf.GradientTape()", None),
    ],
)
@pytest.mark.parametrize("target", ["tpu", "cpu"])
def test_branches_of_one_rank_are_padded_unless_a_gradient_goes_through_both(
    a: str, b: str, tape: str, severity: str | None, target: Target
) -> None:
    text = BRANCHES.format(a=a, b=b, tape=tape)
    found = [one.severity for one in check(text, target=target, select=("XLA005",))]
    assert found == ([severity] if severity else [])


PRINTS = """
import tensorflow as tf

@tf.function(jit_compile=True)
def f(x):
    print({what})
    return x * 2.0
"""


@pytest.mark.parametrize(
    ("what", "severity"),
    [("x", "warning"), ("'x is', x", "warning"), ("f'x is {x}'", "warning"), ("'a trace'", "info"), ("f'{x.shape}'", "info")],
)
def test_a_print_of_a_tensor_shows_none_of_its_numbers(what: str, severity: str) -> None:
    found = check(PRINTS.format(what=what))
    assert [(one.code, one.severity) for one in found] == [("XLA402", severity)]
