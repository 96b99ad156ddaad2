"""Programs like those of bug reports: each has an error, on its line."""

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
    "keras model jit fit with bincount": (
        6,
        """\
import tensorflow as tf
import keras
from keras import layers
class Count(layers.Layer):
    def call(self, inputs):
        return tf.math.bincount(inputs)
model = keras.Sequential([Count()])
model.compile(jit_compile=True)
""",
    ),
    "self method helper": (
        5,
        """\
import tensorflow as tf
from tensorflow import keras
class M(keras.Model):
    def helper(self, x):
        if tf.reduce_max(x) > 1.0:
            return x / tf.reduce_max(x)
        return x
    def call(self, x, training=False):
        return self.helper(x)
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
    "tpu step with print": (
        14,
        """\
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver('')
tf.config.experimental_connect_to_cluster(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    opt = tf.keras.optimizers.Adam()
@tf.function
def train_step(x, y):
    def step_fn(x, y):
        with tf.GradientTape() as tape:
            pred = model(x, training=True)
            loss = tf.reduce_mean(tf.square(pred - y))
        tf.py_function(lambda l: print(l), [loss], [])
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        return loss
    return strategy.run(step_fn, args=(x, y))
""",
    ),
    "custom loss with numpy": (
        6,
        """\
import numpy as np
import tensorflow as tf
from tensorflow import keras
def my_loss(y_true, y_pred):
    err = y_true - y_pred
    return np.mean(np.square(err))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="adam", loss=my_loss)
""",
    ),
    "resize in call": (
        4,
        """\
import tensorflow as tf
class Up(tf.keras.layers.Layer):
    def call(self, x):
        return tf.image.resize(x, (64, 64), method=tf.image.ResizeMethod.BICUBIC)
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
    "keras textvec functional": (
        3,
        """\
import tensorflow as tf
inp = tf.keras.Input(shape=(1,), dtype=tf.string)
vec = tf.keras.layers.TextVectorization(max_tokens=100)
x = vec(inp)
x = tf.keras.layers.Embedding(100, 8)(x)
model = tf.keras.Model(inp, x)
""",
    ),
    "preds in metric": (
        None,
        """\
import keras
import tensorflow as tf
class F1(keras.metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        cm = tf.math.confusion_matrix(y_true, y_pred)
        if tf.reduce_sum(cm) > 0:
            self.total.assign_add(1.0)
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
    "lookup table attr": (
        7,
        """\
import tensorflow as tf
class L(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1)
    def call(self, x):
        return self.table.lookup(x)
""",
    ),
    "for in keras call over tensor": (
        5,
        """\
import tensorflow as tf
class R(tf.keras.layers.Layer):
    def call(self, x):
        outs = []
        for t in tf.range(tf.shape(x)[1]):
            outs.append(x[:, t])
        return tf.stack(outs)
""",
    ),
    "compile args lambda loss": (
        3,
        """\
import keras, tensorflow as tf
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss=lambda y, p: tf.reduce_mean(y - p) if tf.reduce_sum(p) > 0 else tf.reduce_mean(p), optimizer="sgd")
""",
    ),
    "loss subclass": (
        5,
        """\
import tensorflow as tf
class Focal(tf.keras.losses.Loss):
    def call(self, y_true, y_pred):
        l = tf.reduce_mean(y_true - y_pred)
        assert l >= 0
        return l
""",
    ),
    "loss factory": (
        6,
        """\
import tensorflow as tf
from tensorflow.keras import backend as K
def dice(smooth=1.0):
    def loss(y_true, y_pred):
        i = tf.reduce_sum(y_true * y_pred)
        if i < smooth:
            return smooth
        return 1 - i
    return loss
model = tf.keras.Sequential()
model.compile(optimizer="adam", loss=dice())
""",
    ),
    "bool while keras": (
        6,
        """\
import keras
from keras import ops
class L(keras.layers.Layer):
    def call(self, x):
        n = ops.sum(x)
        while n > 0:
            n = n - 1
        return n
""",
    ),
    "ops ternary": (
        5,
        """\
import keras
from keras import ops
class L(keras.layers.Layer):
    def call(self, x):
        return x if ops.mean(x) > 0 else -x
""",
    ),
    "np in keras ops": (
        5,
        """\
import keras
import numpy as np
class L(keras.layers.Layer):
    def call(self, x):
        return np.where(x > 0, x, 0)
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
