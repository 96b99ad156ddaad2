"""Programs that have nothing to fear from XLA, or nothing to do with it: no error, and most of them in silence."""

from __future__ import annotations

import pytest

from hwal.lint import check

PROGRAMS: dict[str, str] = {
    "functions that give arrays and Python's numbers": """\
import tensorflow as tf
def attention(model, image):
    with tf.GradientTape() as tape:
        score = model(image)[:, 0]
    maps = tf.nn.relu(tape.gradient(score, image))
    return maps.numpy()
def volume(matrix):
    value = tf.linalg.det(matrix)
    if value > 0:
        return float(value)
    return float(-value)
def improved(losses, best):
    return bool(tf.reduce_min(losses) < best)
def ids(scores, k):
    found = tf.math.top_k(scores, k).indices
    return [int(one) for one in found]
""",
    "a function that gives nothing": """\
import tensorflow as tf
def pictures(images, writer, step):
    with writer.as_default():
        tf.summary.image("images", images, step)
""",
    "one's own evaluation, with metrics": """\
import numpy as np
import tensorflow as tf
def accuracy(y, p):
    return float(np.mean(y.numpy() == p.numpy()))
def evaluate(model, data, metrics):
    return [metric(y, model(x)) for x, y in data for metric in metrics]
print(evaluate(None, [], metrics=[accuracy]))
""",
    "eager script": """\
import tensorflow as tf
x = tf.random.normal([4])
if tf.reduce_sum(x) > 0:
    print(x.numpy())
for row in x:
    print(row)
""",
    "pipeline": """\
import tensorflow as tf
def parse(example):
    d = tf.io.parse_single_example(example, {"a": tf.io.FixedLenFeature([], tf.string)})
    img = tf.io.decode_jpeg(d["a"])
    return tf.image.resize(img, [8, 8], method="bicubic")
def make(files):
    return tf.data.TFRecordDataset(files).map(parse).batch(8)
""",
    "pipeline file 2": """\
import tensorflow as tf
def decode_img(path):
    img = tf.io.read_file(path)
    img = tf.io.decode_png(img, channels=3)
    return tf.image.resize(img, [224, 224])
""",
    "callback": """\
import keras
import numpy as np
class C(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] > 1.0:
            print(float(logs["loss"]))
""",
    "training flag etc": """\
import tensorflow as tf
from tensorflow import keras
class B(keras.layers.Layer):
    def __init__(self, units, use_bias=True, activation=None):
        super().__init__()
        self.units = units
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units))
        if self.use_bias:
            self.b = self.add_weight(shape=(self.units,))
    def call(self, inputs, mask=None, training=None):
        x = tf.matmul(inputs, self.w)
        if self.use_bias:
            x += self.b
        if mask is not None:
            x *= tf.cast(mask, x.dtype)
        if training and self.units > 4:
            x = tf.nn.dropout(x, 0.1)
        if self.activation is not None:
            x = self.activation(x)
        return x
""",
    "train loop eager": """\
import tensorflow as tf
def train(model, ds, opt):
    for epoch in range(3):
        for step, (x, y) in enumerate(ds):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            g = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(g, model.trainable_variables))
            if step % 10 == 0:
                print(loss.numpy())
""",
    "gan train_step": """\
import tensorflow as tf
@tf.function
def train_step(images):
    noise = tf.random.normal([BATCH_SIZE, noise_dim])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated = generator(noise, training=True)
        real = discriminator(images, training=True)
        fake = discriminator(generated, training=True)
        g = generator_loss(fake)
        d = discriminator_loss(real, fake)
    gg = gen_tape.gradient(g, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gg, generator.trainable_variables))
""",
    "attention": """\
import tensorflow as tf
def scaled_dot_product_attention(q, k, v, mask):
    m = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], tf.float32)
    logits = m / tf.math.sqrt(dk)
    if mask is not None:
        logits += mask * -1e9
    w = tf.nn.softmax(logits, axis=-1)
    return tf.matmul(w, v), w
class MHA(tf.keras.layers.Layer):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.depth = d // h
        self.wq = tf.keras.layers.Dense(d)
    def split_heads(self, x, batch_size):
        x = tf.reshape(x, (batch_size, -1, self.h, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])
    def call(self, v, k, q, mask=None):
        b = tf.shape(q)[0]
        q = self.split_heads(self.wq(q), b)
        out, w = scaled_dot_product_attention(q, q, q, mask)
        out = tf.transpose(out, perm=[0, 2, 1, 3])
        return tf.reshape(out, (b, -1, self.h * self.depth))
""",
    "positional": """\
import numpy as np
import tensorflow as tf
def get_angles(pos, i, d):
    return pos * (1 / np.power(10000, (2 * (i // 2)) / np.float32(d)))
def positional_encoding(position, d):
    a = get_angles(np.arange(position)[:, np.newaxis], np.arange(d)[np.newaxis, :], d)
    a[:, 0::2] = np.sin(a[:, 0::2])
    return tf.cast(a[np.newaxis, ...], dtype=tf.float32)
""",
    "vae": """\
import keras, tensorflow as tf
class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.total = keras.metrics.Mean(name="total")
    @property
    def metrics(self):
        return [self.total]
    def train_step(self, data):
        if isinstance(data, tuple):
            data = data[0]
        with tf.GradientTape() as tape:
            mean, logvar, z = self.encoder(data)
            r = self.decoder(z)
            loss = tf.reduce_mean(tf.reduce_sum(keras.losses.binary_crossentropy(data, r), axis=(1, 2)))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
        self.total.update_state(loss)
        return {m.name: m.result() for m in self.metrics}
""",
    "numpy eval": """\
import numpy as np
import tensorflow as tf
def evaluate(model, x, y):
    pred = model.predict(x)
    acc = np.mean(np.argmax(pred, 1) == y)
    if acc > 0.5:
        print(acc)
    return acc
""",
    "seq lens": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    b, t, d = x.shape
    n = tf.shape(x)[1]
    pos = tf.range(n)
    return x + tf.cast(pos, x.dtype)[None, :, None] + tf.zeros([b, t, d])
""",
    "beam": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x, training: bool = False, k: int = 3):
    v, i = tf.math.top_k(x, k=k)
    outs = []
    for j in range(k):
        outs.append(v[:, j])
    if training:
        outs = [o * 2 for o in outs]
    return tf.stack(outs, 1), i
""",
    "seed": """\
import tensorflow as tf
def create_look_ahead_mask(size):
    return 1 - tf.linalg.band_part(tf.ones((size, size)), -1, 0)
def create_padding_mask(seq):
    seq = tf.cast(tf.math.equal(seq, 0), tf.float32)
    return seq[:, tf.newaxis, tf.newaxis, :]
""",
    "tile by shape ok": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    return tf.tile(x, [tf.shape(x)[0], 1])
""",
    "cond_static": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    if x.shape[0] > 2 and len(x.shape) == 2:
        return x * 2.0
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x)
""",
    "ta ok": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def f(x):
    ta = tf.TensorArray(tf.float32, size=4)
    for i in tf.range(4):
        ta = ta.write(i, x[i])
    return ta.stack()
""",
    "aug pipeline": """\
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
aug = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])
ds = tf.data.Dataset.from_tensor_slices(tf.zeros([4, 8, 8, 3])).batch(2)
ds = ds.map(lambda x: aug(x, training=True))
""",
    "vectorizer in pipeline": """\
import tensorflow as tf
vec = tf.keras.layers.TextVectorization(max_tokens=10)
vec.adapt(["a b"])
def encode(text, label):
    return vec(text), label
ds = tf.data.Dataset.from_tensor_slices((["a"], [1])).map(encode)
""",
    "plain numpy": """\
import numpy as np
def f(x):
    if np.sum(x) > 0:
        return x[x > 0]
    for row in x:
        print(row)
""",
    "torch eager": """\
import torch
def f(x):
    if x.sum() > 0:
        return x.nonzero()
    return x.cpu().numpy()
""",
    "optional mask": """\
import keras
from keras import ops
class A(keras.layers.Layer):
    def call(self, query, value, key=None, attention_mask=None, return_attention_scores=False):
        if key is None:
            key = value
        shape = ops.shape(query)
        if len(shape) == 3 and shape[-1] != 4:
            query = ops.reshape(query, (shape[0], -1, 4))
        out = ops.matmul(query, key)
        if attention_mask is not None and not isinstance(attention_mask, bool):
            out = ops.where(attention_mask, out, -1e9)
        if return_attention_scores:
            return out, query
        return out
""",
    "list inputs": """\
import keras
from keras import ops
class M(keras.layers.Layer):
    def call(self, inputs):
        a, b = inputs
        out = 0
        for x in inputs:
            out = out + x
        return ops.concatenate([a, b] + [o * 2 for o in inputs])
""",
    "rnn states": """\
import tensorflow as tf
class Cell(tf.keras.layers.Layer):
    def call(self, inputs, states):
        h, c = states
        z = tf.matmul(inputs, h)
        i, f, g, o = tf.split(z, 4, axis=1)
        c = f * c + i * g
        return o * tf.tanh(c), [o, c]
""",
    "loop ok": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def power(x, steps=10):
    for i in range(steps):
        x = x * x
        if i % 2 == 0:
            x = x + 1.0
    return x
""",
    "dict batch": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def step(batch):
    ids = batch["ids"]
    mask = batch["mask"]
    for key, value in batch.items():
        if key == "labels":
            ids = ids + value
    return tf.reduce_sum(tf.cast(mask, tf.int32) * ids)
""",
    "grad loop zip": """\
import tensorflow as tf
@tf.function(jit_compile=True)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    grads = tape.gradient(loss, model.trainable_variables)
    grads = [tf.clip_by_norm(g, 1.0) for g in grads]
    for g, v in zip(grads, model.trainable_variables):
        v.assign_sub(0.1 * g)
    grads, norm = tf.clip_by_global_norm(grads, 1.0)
    return loss
""",
    "mask multiply": """\
import tensorflow as tf
def masked_loss(y_true, y_pred):
    mask = tf.cast(tf.not_equal(y_true, 0), tf.float32)
    loss = tf.keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)
model = tf.keras.Sequential()
model.compile(loss=masked_loss)
""",
}


HOST = ("eager script", "pipeline", "pipeline file 2", "callback", "plain numpy", "torch eager", "numpy eval", "aug pipeline")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ["tpu", "cpu"])
def test_no_error(name: str, target: str) -> None:
    found = check(PROGRAMS[name], target="tpu" if target == "tpu" else "cpu")
    assert [one for one in found if one.severity == "error"] == []


@pytest.mark.parametrize("name", HOST)
def test_silence(name: str) -> None:
    assert check(PROGRAMS[name], target="tpu") == []


def test_a_test_file_is_passed_over() -> None:
    text = "import tensorflow as tf\n\ndef check_it(x):\n    return tf.strings.length(x)\n"
    assert check(text, path="ops.py")
    assert check(text, path="tests/test_ops.py") == check(text, path="ops_test.py") == []
