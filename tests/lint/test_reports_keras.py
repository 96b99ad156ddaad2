"""Programs like those of bug reports about Keras: each has an error, on its line."""

from __future__ import annotations

import pytest

from hwal.lint import check

PROGRAMS: dict[str, tuple[int | None, str]] = {
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
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_is_found_on_its_line(name: str) -> None:
    line, text = PROGRAMS[name]
    errors = [found for found in check(text, target="tpu") if found.severity == "error"]
    assert errors
    assert line is None or line in {found.line for found in errors}
