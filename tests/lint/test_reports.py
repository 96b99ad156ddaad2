"""Programs like those of bug reports about tf.function: each has an error, on its line."""

from __future__ import annotations

import pytest

from hwal.lint import check

PROGRAMS: dict[str, tuple[int | None, str]] = {
    "unique_with_counts report": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def fn(x):
    y, idx, count = tf.unique_with_counts(x)
    return y
fn(tf.constant([1,2,2]))
""",
    ),
    "class Model tf.Module": (
        8,
        """\
import tensorflow as tf
class Net(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.ones([4, 4]))
    @tf.function(jit_compile=True)
    def __call__(self, x):
        y = tf.matmul(x, self.w)
        return tf.linalg.det(y)
""",
    ),
    "lambda in tf.function call": (
        3,
        """\
import tensorflow as tf
def body(x):
    return tf.strings.as_string(x)
compiled = tf.function(body, jit_compile=True)
compiled(tf.ones([2]))
""",
    ),
    "strategy.run": (
        None,
        """\
import tensorflow as tf
strategy = tf.distribute.TPUStrategy()
@tf.function
def train(it):
    def step(x, n):
        return tf.reshape(x, [n, -1])
    return strategy.run(step, args=(next(it), 1))
""",
    ),
    "nms": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def detect(boxes, scores):
    return tf.image.combined_non_max_suppression(boxes, scores, 100, 100)
""",
    ),
    "map_fn ragged": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x: tf.RaggedTensor):
    return x.to_tensor()
""",
    ),
    "while in tape": (
        8,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        i = tf.constant(0)
        y = x
        while i < 10:
            y = y * 2.0
            i += 1
        loss = tf.reduce_sum(y)
    return tape.gradient(loss, x)
""",
    ),
    "dynamic range": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def positions(lengths):
    return tf.range(tf.reduce_max(lengths))
""",
    ),
    "variable in function": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    v = tf.Variable(0.0)
    v.assign_add(x)
    return v
""",
    ),
    "eigen": (
        4,
        """\
import tensorflow as tf
@tf.function(experimental_compile=True)
def f(x):
    e, v = tf.linalg.eig(x)
    return e
""",
    ),
    "partial jit": (
        5,
        """\
import functools
import tensorflow as tf
@functools.partial(tf.function, jit_compile=True)
def f(x):
    return tf.linalg.slogdet(x)
""",
    ),
    "nested closure": (
        6,
        """\
import tensorflow as tf
def make(model):
    @tf.function(jit_compile=True)
    def step(batch):
        out = model(batch)
        tf.print(out)
        return out
    return step
""",
    ),
    "assert in step": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(a, b):
    assert tf.reduce_all(a == b), "differ"
    return a
""",
    ),
    "sparse matmul": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def gcn(adj: tf.SparseTensor, x):
    return tf.sparse.sparse_dense_matmul(adj, x)
""",
    ),
    "do_not_convert": (
        4,
        """\
import tensorflow as tf
@tf.autograph.experimental.do_not_convert
def helper(x):
    if tf.reduce_sum(x) > 0:
        return x
    return -x
@tf.function(jit_compile=True)
def f(x):
    return helper(x)
""",
    ),
    "autograph false": (
        4,
        """\
import tensorflow as tf
@tf.function(autograph=False, jit_compile=True)
def f(x):
    for row in x:
        tf.nn.relu(row)
    return x
""",
    ),
    "generator expr sum": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    return sum(r * r for r in x)
""",
    ),
    "boolean mask grad": (
        7,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x, w, mask):
    with tf.GradientTape() as tape:
        tape.watch(x)
        sel = tf.boolean_mask(x, mask)
        loss = tf.reduce_sum(sel * w)
    return tape.gradient(loss, x)
""",
    ),
    "set diff": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(a, b):
    return tf.sets.difference(a, b)
""",
    ),
    "random gamma": (
        4,
        """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f():
    return tf.random.gamma([4], 2.0)
""",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_is_found_on_its_line(name: str) -> None:
    line, text = PROGRAMS[name]
    errors = [found for found in check(text, target="tpu") if found.severity == "error"]
    assert errors
    assert line is None or line in {found.line for found in errors}
