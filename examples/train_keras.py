"""A small vision model on scikit-learn's digits, by Keras's model.fit: 1,797 images of 8 × 8 pixels, ten classes.

python examples/train_keras.py
hwal train examples/train_keras.py --epochs 20
hwal train --virtual-ranks 8 examples/train_keras.py
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import hwal


def digits() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=0, reshuffle_each_iteration=False)
    # The batch is the global batch, at any number of replicas; the last one of an epoch has 28 rows.
    return data.take(1500).cache().shuffle(1500).batch(64), data.skip(1500).batch(256)


def network() -> keras.Model:
    # GroupNormalization, not BatchNormalization: a sample's output must not depend on which others share its batch.
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same"),
            keras.layers.GroupNormalization(8),
            keras.layers.ReLU(),
            keras.layers.Conv2D(64, 3, padding="same", strides=2),
            keras.layers.GroupNormalization(8),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, dtype="float32"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    with hwal.start() as rt:
        train, test = digits()
        with rt.scope():
            model = network()
            model.compile(
                optimizer=keras.optimizers.AdamW(args.lr),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                **rt.compile_options(),
            )
        model = rt.prepare(model)
        model.fit(rt.feed(train), epochs=args.epochs, validation_data=rt.feed(test, train=False))
        scores = model.evaluate(rt.feed(test, train=False), return_dict=True)
        rt.say(f"accuracy {scores['accuracy']:.3f}")


if __name__ == "__main__":
    main()
