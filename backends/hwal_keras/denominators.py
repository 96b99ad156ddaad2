"""What a loss is divided by: that of the whole global batch, on every replica.

Keras divides a replica's losses by what that replica has: its rows, its elements that no mask hides, or the sum of its weights.
Means of such means are not the mean of all. Here the denominators of all replicas are added up first. What Keras does by
`reduction` is done again for that (as of Keras 3.15: losses/loss.py, trainers/compile_utils.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask  # not public; tried with Keras 3.15
from keras.src.losses.loss import squeeze_or_expand_to_same_rank

from hwal.errors import ScriptError

MEANS = ("sum_over_batch_size", "mean")
BY_WEIGHT = "mean_with_sample_weight"
_here = threading.local()  # TensorFlow traces each replica's step in a thread of its own


@contextmanager
def counting(rows: Any, size: Any) -> Iterator[None]:
    """Within, a Whole is this replica's part of the global batch's loss: of `rows` of its `size` rows."""
    _here.rows, _here.size = rows, size
    try:
        yield
    finally:
        _here.rows = _here.size = None


def check_losses(model: Any, replicas: int) -> None:
    """Raises ScriptError for a compiled model with a loss of which nobody else knows what it divides by."""
    for loss in tf.nest.flatten(model.loss):
        if not isinstance(loss, keras.losses.Loss):
            continue
        kind = type(loss)
        if loss.reduction not in (*MEANS, BY_WEIGHT, "sum"):
            raise ScriptError(
                f"a loss of reduction {loss.reduction} ({kind.__name__}) cannot be weighed over {replicas} replicas",
                where="model.compile",
                hint='reduction="sum_over_batch_size", or "sum"',
            )
        if kind.__call__ is not keras.losses.Loss.__call__:
            raise ScriptError(
                f"{kind.__name__}.__call__ is the script's own, and {replicas} replicas train by it",
                where="model.compile",
                why="what it divides by, and so what part of the global batch's loss a replica's is, only the script knows",
                hint="call(y_true, y_pred) of a keras.losses.Loss, which Keras reduces; or a loop of your own with rt.run",
            )


def make_whole(model: Any) -> None:
    """Has a compiled and built model's losses be parts of the global batch's, in a step."""
    if model._compile_loss is None:
        return
    flat = model._compile_loss._flat_losses
    for place, one in enumerate(flat):
        if not isinstance(one.loss, Whole):
            flat[place] = one._replace(loss=Whole(one.loss))


class Whole(keras.losses.Loss):
    """A loss whose results on all replicas add up to that of the global batch. Outside of a step it is the loss itself."""

    def __init__(self, loss: Any) -> None:
        super().__init__(name=loss.name, reduction=loss.reduction, dtype=loss.dtype)
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        rows = getattr(_here, "rows", None)
        if rows is None:
            return self.loss(y_true, y_pred, sample_weight)
        hidden = [get_keras_mask(y_pred)]
        y_pred, y_true = (
            keras.tree.map_structure(lambda value: keras.ops.convert_to_tensor(value, dtype=self.dtype), values)
            for values in (y_pred, y_true)
        )
        values = self.loss.call(y_true, y_pred)
        hidden.append(get_keras_mask(values))
        values = tf.convert_to_tensor(values, self.dtype)
        if values.shape.rank == 0:  # a function that makes one number of a batch: the mean over its rows
            return values * tf.cast(rows / _here.size, values.dtype)
        total, count = self._parts(values, [tf.cast(mask, values.dtype) for mask in hidden if mask is not None], sample_weight)
        real = tf.cast(rows > 0, values.dtype)  # a replica without rows has one that counts for nothing
        if count is None:
            return total * real
        whole = tf.distribute.get_replica_context().all_reduce("SUM", tf.stop_gradient(count * real))
        return tf.math.divide_no_nan(total * real, whole)

    def _parts(self, values: Any, masks: list[Any], sample_weight: Any) -> tuple[Any, Any]:
        """(the sum, what to divide it by) of this replica; the second is None for a sum."""
        mask = tf.reduce_prod(tf.stack(masks), axis=0) if len(masks) == 2 else masks[0] if masks else None
        weights = None if sample_weight is None else tf.cast(sample_weight, values.dtype)
        if mask is not None:
            if weights is None:
                weights = mask
            else:
                here, weights = squeeze_or_expand_to_same_rank(mask, weights)
                weights = weights * here
        if weights is not None:
            values, weights = squeeze_or_expand_to_same_rank(values, weights)
            values = values * weights
        total = tf.reduce_sum(values)
        if self.reduction == "sum":
            return total, None
        if self.reduction == BY_WEIGHT and weights is not None:
            return total, tf.reduce_sum(weights)
        count = tf.cast(tf.size(values), values.dtype)
        if mask is not None:
            count *= tf.reduce_sum(mask) / tf.cast(tf.size(mask), values.dtype)
        return total, count
