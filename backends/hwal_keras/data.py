"""What a script hands model.fit -> Feed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from hwal.errors import ScriptError
from hwal.seeds import mix
from hwal_keras.feed import Feed

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

BATCH = 32  # rows, where the script does not say: Keras's own choice


def feed_of(
    rt: SharedKerasRuntime, x: Any, y: Any, batch_size: int | None, shuffle: bool, train: bool, weights: Any = None
) -> Feed:
    """A Feed of what rt.feed gave, of a dataset, or of arrays in memory, which are shuffled for training by the run's seed.

    Raises ScriptError for what is none of them, and for arrays of different lengths.
    """
    if isinstance(x, Feed | tf.data.Dataset) and (y is not None or weights is not None):
        raise ScriptError(
            f"{'y' if y is not None else 'sample_weight'} is given beside a dataset",
            hint="a dataset of (x, y), or of (x, y, sample_weight)",
        )
    if isinstance(x, Feed | tf.data.Dataset) and batch_size is not None:
        rt.say_once(f"batch_size={batch_size} is for arrays: the dataset's own batches stay")
    if isinstance(x, Feed):
        if x.train != train:
            use = "to train on" if train else "to evaluate on"
            raise ScriptError(f"this rt.feed() is not one {use}", hint="rt.feed(data), and rt.feed(data, train=False)")
        return x
    if isinstance(x, tf.data.Dataset):
        return rt.feed(x, train)  # as the script would: a Runtime may have rules for its data
    values = _arrays(x, y, weights)
    data = tf.data.Dataset.from_tensor_slices(values)
    rows = len(tf.nest.flatten(values)[0])
    if train and shuffle:
        data = data.shuffle(rows, seed=mix(rt.progress.seed, 1) & 0x7FFFFFFF)
    return Feed(rt, data.batch(batch_size or BATCH), train, arrays=True)


def inputs_of(x: Any, batch_size: int | None) -> Any:
    """A dataset of the batches that model.predict goes over: of what rt.feed gave, of a dataset, or of arrays.

    Raises ScriptError as feed_of does.
    """
    if isinstance(x, Feed):
        return x.script
    if isinstance(x, tf.data.Dataset):
        return x
    _check_rows({"x": x})
    return tf.data.Dataset.from_tensor_slices((_tuples(x),)).batch(batch_size or BATCH)


def _arrays(x: Any, y: Any, weights: Any) -> Any:
    """The arrays as a dataset is to have them: lists of several inputs or outputs are tuples, which it does not stack."""
    given = {"x": x, "y": y, "sample_weight": weights}
    _check_rows(given)
    x, y, weights = map(_tuples, given.values())
    if y is None:
        if isinstance(x, tuple):
            raise ScriptError("several inputs without y", hint="a dict of the inputs by name, or a dataset of ((a, b),)")
        return x
    return (x, y) if weights is None else (x, y, weights)


def _check_rows(given: Mapping[str, Any]) -> None:
    """Raises ScriptError for what are no arrays, or arrays of different lengths."""
    lengths: dict[str, int] = {}
    for name, value in given.items():
        leaves = tf.nest.flatten(value)
        for place, leaf in enumerate(leaves):
            if leaf is None and name != "x":
                continue
            which = name if len(leaves) == 1 else f"part {place} of {name}"
            if not getattr(leaf, "shape", ()):
                raise ScriptError(
                    f"a prepared model is fed by a tf.data.Dataset or arrays: {which} is a {type(leaf).__name__}",
                    hint="model.fit(rt.feed(dataset), …), or numpy.asarray(…) of what are rows",
                )
            lengths[which] = int(leaf.shape[0])
    if len(set(lengths.values())) > 1:
        raise ScriptError(
            "the arrays have different numbers of rows: " + "; ".join(f"{name}: {rows}" for name, rows in lengths.items()),
            hint="one row of each for one example",
        )


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(one) for one in value)
    return {name: _tuples(one) for name, one in value.items()} if isinstance(value, dict) else value


def check_classes(element: Any) -> None:
    """Raises ScriptError for a batch, by its specs, whose labels cannot be weighed by their classes."""
    _, y, _ = keras.utils.unpack_x_y_sample_weight(element)
    labels = tf.nest.flatten(y)
    rank = labels[0].shape.rank if len(labels) == 1 else None
    if len(labels) != 1 or rank is None or rank > 2:
        what = f"labels of {rank} dimensions" if len(labels) == 1 else f"{len(labels)} outputs"
        raise ScriptError(
            f"class_weight is for one label a row, and there are {what}",
            where="model.fit",
            hint="sample_weight: a dataset of (x, y, sample_weight), with the weight of each label's class",
        )


def apart(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample weights) of what validation_data is: a dataset, or (x, y) or (x, y, sample_weight). Raises ScriptError."""
    if not isinstance(data, list | tuple):
        return data, None, None
    if len(data) not in (2, 3):
        raise ScriptError(
            f"validation_data is a {type(data).__name__} of {len(data)}", hint="(x, y), (x, y, sample_weight) or a dataset"
        )
    x, y, *weights = data
    return x, y, weights[0] if weights else None
