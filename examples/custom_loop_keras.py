"""The same digits by a loop of one's own: a GradientTape, two losses, no model.fit.

python examples/custom_loop_keras.py
hwal train --virtual-ranks 4 examples/custom_loop_keras.py

A step is run on every replica, on its rows of the global batch. A loss that is the sum over these rows divided by `size`, the
rows of the whole batch, has gradients that add up over the replicas to those of the global batch.
"""

import argparse
from collections.abc import Callable

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import hwal

WEIGHT = 0.3  # of the second loss: how well the picture can be drawn again from its code


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices((images.astype("float32") / 16, labels))
    data = data.shuffle(len(images), seed=0, reshuffle_each_iteration=False)
    return data.take(1500).cache().shuffle(1500).batch(64), data.skip(1500).batch(256)


def network() -> keras.Model:
    pixels = keras.Input((64,))
    code = keras.layers.Dense(48, activation="relu")(keras.layers.Dense(128, activation="relu")(pixels))
    digit = keras.layers.Dense(10, dtype="float32")(code)
    drawn = keras.layers.Dense(64, activation="sigmoid", dtype="float32")(code)
    return keras.Model(pixels, (digit, drawn))


def make_steps(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> tuple[Callable, Callable]:
    def train_step(batch, size):
        pixels, labels = batch
        with tf.GradientTape() as tape:
            digit, drawn = model(pixels, training=True)
            class_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, digit)
            draw_loss = tf.reduce_mean((drawn - pixels) ** 2, axis=1)
            loss = tf.reduce_sum(class_loss + WEIGHT * draw_loss) / size
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def test_step(batch, size):
        pixels, labels = batch
        hits = tf.argmax(model(pixels)[0], axis=1) == labels
        return tf.reduce_sum(tf.cast(hits, tf.float32)), tf.shape(labels)[0]

    return train_step, test_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    with hwal.start() as rt:
        train, test = digits()
        with rt.scope():
            model = network()
            optimizer = keras.optimizers.Adam(args.lr)
        model, optimizer = rt.prepare(model, optimizer)

        train_step, test_step = make_steps(model, optimizer)

        for epoch in rt.epochs(args.epochs):
            for batch in rt.feed(train):
                rt.run(train_step, batch)
            hits = count = 0
            for batch in rt.feed(test, train=False):
                some, number = rt.run(test_step, batch)
                hits, count = hits + float(some), count + int(number)
            accuracy = rt.mean(hits, count)
            rt.log(accuracy=accuracy)
            rt.say(f"epoch {epoch}: accuracy {accuracy:.3f}")
            rt.save()


if __name__ == "__main__":
    main()
