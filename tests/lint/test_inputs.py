"""What an input and a weight are is taken for known where the files in sight say so, and nowhere else."""

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
