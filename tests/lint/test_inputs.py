"""What an input, a weight and a loop's variable are is taken for known where the files in sight say so, and nowhere else."""

from __future__ import annotations

import pytest

from hwal.lint import check

LAYER = """\
import keras
import tensorflow as tf

class Sum(keras.layers.Layer):
    def call(self, x):
        if isinstance(x, tf.SparseTensor):
            return tf.sparse.reduce_sum(x)
        return tf.reduce_sum(x)

"""


def told(text: str) -> list[str]:
    return [found.code for found in check(text, target="tpu") if found.severity == "error"]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        ("y = Sum()(keras.Input((3,)))", False),
        ("y = Sum()(keras.Input((3,), sparse=False))", False),
        ("y = Sum()(keras.Input((3,), sparse=True))", True),
        ("spec = tf.SparseTensorSpec([3, 3])", True),
        ("y = Sum()(tf.sparse.from_dense(tf.eye(3)))", True),
        ("def load(x):\n    return tf.sparse.from_dense(x)", False),
    ],
)
def test_an_argument_is_dense_where_nothing_sparse_is_in_sight(use: str, error: bool) -> None:
    assert told(LAYER + use + "\n") == (["XLA204"] if error else [])


VARIABLE = """\
import keras
import tensorflow as tf

class Held(keras.layers.Layer):
    def build(self, shape):
        self.w = {made}

    @tf.function
    def g(self, x):
        if tf.reduce_sum(x) > 0:
            y = self.w
        else:
            y = tf.zeros([3])
        return y
"""


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ("self.add_weight()", True),
        ("self.add_weight('w', **self.options)", False),
        ("self.add_weight(*self.given)", False),
        ("self.add_weight(shape=(3,))", False),
        ("self.add_weight(shape=(3, 3))", True),
        ("tf.Variable(tf.zeros([0, 3]))", True),
        ("tf.Variable(tf.zeros([3]), shape=[None])", False),
        ("tf.Variable(tf.zeros([0, 3]), shape=tf.TensorShape(None))", False),
        ("tf.Variable(tf.zeros([3]), shape=[None, 3])", True),
        ("tf.Variable(tf.zeros([0, 3]), **self.options)", False),
    ],
)
def test_the_shape_of_a_weight_is_the_one_that_is_written(made: str, error: bool) -> None:
    assert told(VARIABLE.format(made=made)) == (["XLA005"] if error else [])


LOOPS = """\
import tensorflow as tf

class Grown(tf.Module):
    def body(self, i, acc):
        {lines}

    @tf.function(jit_compile=True)
    def method(self, x):
        return tf.while_loop(lambda i, a: i < 3, self.body, [0, x])

def body(i, acc):
    {lines}

@tf.function(jit_compile=True)
def plain(x):
    return tf.while_loop(lambda i, a: i < 3, body, [0, x])
"""


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("return i + 1, tf.concat([acc, acc], 0)", True),
        ("acc = tf.concat([acc, acc], 0); return i + 1, acc", True),
        ("longer = tf.concat([acc, acc], 0); return i + 1, longer", True),
        ("out = (i + 1, tf.concat([acc, acc], 0)); return out", True),
        ("acc = acc[:2]; return i + 1, tf.concat([acc, acc], 0)", False),
        ("acc = tf.concat([acc, acc], 0); acc = acc[2:]; return i + 1, acc", False),
        ("return i + 1, tf.concat([acc, acc], 0)[2:]", False),
        ("return i + 1, tf.tile(acc, [1, 1])", False),
        ("return i + 1, tf.tile(acc, [2, 1])", True),
        ("return i + 1, tf.pad(acc, [[0, 0]])", False),
        ("return i + 1, tf.pad(acc, [[0, 1]])", True),
    ],
)
def test_a_loops_variable_that_grows_in_a_body_or_a_method(lines: str, error: bool) -> None:
    assert told(LOOPS.format(lines=lines)) == (["XLA005"] * 2 if error else [])
