"""What a script hands model.fit -> Feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hwal.errors import ScriptError
from hwal.seeds import mix
from hwal_keras.feed import Feed

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

BATCH = 32  # rows, where the script does not say: Keras's own choice


def feed_of(rt: SharedKerasRuntime, x: Any, y: Any, batch_size: int | None, shuffle: bool, train: bool) -> Feed:
    """A Feed of what rt.feed gave, of a dataset, or of arrays in memory, which are shuffled for training by the run's seed.

    Raises ScriptError for what is none of them.
    """
    if isinstance(x, Feed):
        if x.train != train:
            use = "to train on" if train else "to evaluate on"
            raise ScriptError(f"this rt.feed() is not one {use}", hint="rt.feed(data), and rt.feed(data, train=False)")
        return x
    if isinstance(x, tf.data.Dataset):
        return rt.feed(x, train)  # as the script would: a Runtime may have rules for its data
    leaves = tf.nest.flatten((x, y))
    if x is None or not all(leaf is None or hasattr(leaf, "shape") for leaf in leaves):
        raise ScriptError(
            f"a prepared model is fed by a tf.data.Dataset or arrays, not by a {type(x).__name__}",
            hint="model.fit(rt.feed(dataset), …)",
        )
    data = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    rows = len(leaves[0])
    if train and shuffle:
        data = data.shuffle(rows, seed=mix(rt.progress.seed, 1) & 0x7FFFFFFF)
    return Feed(rt, data.batch(batch_size or BATCH), train)
