"""One step of model.fit and of an evaluation, on one replica.

Keras 3's own train_step takes every replica's loss for an equal part of the global batch's, which it is not where a batch
does not divide, or where it is divided by what a mask leaves. Here a replica's loss is divided by what the whole global batch
has (denominators.py): the losses, and the gradients, are those of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hwal.errors import ScriptError
from hwal_keras.denominators import check_losses, counting
from hwal_keras.optimizing import rate_of


def trimmed(values: Any, rows: Any) -> Any:
    """A replica's values without the rows that only fill it up."""
    return tf.nest.map_structure(lambda value: value[:rows], values)


def on_replicas(
    step: Callable[..., Any], strategy: Any, static: bool, optimizer: Any = None
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step of the script's own, `step(values, size, *rest)`, on every replica: what they return is added up, and beside it
    stands the learning rate that the optimizer has in that step; None without one.

    Raises ScriptError, when called, where that are a replica's rows.
    """
    replicas = strategy.num_replicas_in_sync
    rows: list[Any] = []  # shapes of such results, found when the step is traced, where an error would be TensorFlow's

    def replica(parts: Any, rest: Any) -> Any:
        real, size, values = parts
        if replicas > 1 and not static:
            values = trimmed(values, real)
        rate = None if optimizer is None else rate_of(optimizer)
        results = step(values, tf.cast(size, tf.float32), *rest)
        if replicas > 1:
            rows.extend(_of_rows(results, values, static))
        return (None if rows else results), rate

    def everywhere(parts: Any, rest: Any) -> Any:
        results, rate = strategy.run(replica, args=(parts, rest))
        added = tf.nest.map_structure(
            lambda value: None if value is None else strategy.reduce("SUM", value, axis=None), results
        )
        return added, None if rate is None else strategy.experimental_local_results(rate)[0]

    function = tf.function(everywhere, reduce_retracing=True)

    def run(parts: Any, rest: Any) -> tuple[Any, Any]:
        results, rate = function(parts, rest)
        if rows:
            raise ScriptError(
                f"the step returns a row for each of its replica's, {rows[0]}, and rt.run() adds up what replicas return",
                where="rt.run",
                hint="return sums over the rows; predictions come of model.predict()",
            )
        return results, rate

    return run


def _of_rows(results: Any, values: Any, static: bool) -> list[Any]:
    """The shapes of the results that have as many rows as the replica's part of the batch, a number that is only known where
    shapes are `static`."""
    count = tf.nest.flatten(values)[0].shape[0] if static else None
    shapes = [getattr(result, "shape", None) for result in tf.nest.flatten(results)]
    return [shape for shape in shapes if shape is not None and shape.rank and shape[0] == count]


def train_step(
    model: Any, strategy: Any, static: bool, weights: Any = None, holds: bool = False
) -> Callable[[Any], tuple[Any, Any]]:
    """A function of a replica's part that updates the model; it returns the global batch's loss and its rows.

    Args:
        weights: those of the classes, a vector; None without. holds: as holds_back has it.
    """
    replicas = strategy.num_replicas_in_sync
    if type(model).train_step is not keras.Model.train_step:
        return _own_step(model, replicas, static)

    def step(parts: Any) -> tuple[Any, Any]:
        rows, size, values = parts
        if replicas > 1 and not static:
            values = trimmed(values, tf.maximum(rows, 1))  # one row without weight, where there is none
        x, y, sample_weight = unpack(values, weights)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = _loss(model, (x, y, y_pred, sample_weight), True, rows, size, replicas)
            scaled = model.optimizer.scale_loss(loss)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        if holds:
            tf.cond(tf.math.is_finite(loss), lambda: _applied(model.optimizer, gradients, variables), lambda: tf.constant(0))
        else:
            model.optimizer.apply(gradients, variables)
        whole = tf.distribute.get_replica_context().all_reduce("SUM", loss) if replicas > 1 else loss
        _measure(model, rows, whole, (x, y, y_pred, sample_weight), replicas)
        return whole, size

    return step


def _applied(optimizer: Any, gradients: Any, variables: Any) -> Any:
    optimizer.apply(gradients, variables)
    return tf.constant(0)


def by_xla(model: Any, step: Any) -> Any:
    """The step of one replica, compiled by XLA where the model is to be."""
    return tf.function(step, jit_compile=True, reduce_retracing=True) if model.jit_compile else step


def in_graph(model: Any, function: Any) -> Any:
    """A function over all replicas, as a graph, unless the model is to run eagerly."""
    return function if model.run_eagerly else tf.function(function, reduce_retracing=True)


def holds_back(model: Any, strategy: Any, on_host: bool) -> bool:
    """Whether a step leaves its update out where its loss is no number: on one device, which is the host.

    A GPU would wait for the host at the branch, a TPU keep the gradients in its memory meanwhile; and over several replicas an
    update meets those of the others, which no branch of a graph can.
    """
    return on_host and strategy.num_replicas_in_sync == 1 and type(model).train_step is keras.Model.train_step


def test_step(model: Any, strategy: Any, static: bool) -> Callable[[Any], None]:
    """A function of a replica's part that updates the model's metrics, and nothing else."""
    replicas = strategy.num_replicas_in_sync
    own = type(model).test_step is not keras.Model.test_step

    def step(parts: Any) -> None:
        rows, size, values = parts
        if replicas > 1 and not static:
            values = trimmed(values, tf.maximum(rows, 1))
        if own:
            _only_with(rows, replicas, static, lambda: model.test_step(values))
            return
        x, y, sample_weight = unpack(values)
        y_pred = model(x, training=False)
        loss = _loss(model, (x, y, y_pred, sample_weight), False, rows, size, replicas)
        whole = tf.distribute.get_replica_context().all_reduce("SUM", loss) if replicas > 1 else loss
        _measure(model, rows, whole, (x, y, y_pred, sample_weight), replicas)

    return step


def unpack(values: Any, weights: Any = None) -> tuple[Any, Any, Any]:
    """(x, y, sample weights) of a batch as Keras takes them; with the classes' weights among the last."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(values)
    if weights is not None:
        labels = tf.argmax(y, axis=-1) if y.shape.rank == 2 and y.shape[-1] != 1 else tf.reshape(y, [-1])
        by_class = _of_classes(weights, tf.cast(tf.round(labels), tf.int32))
        sample_weight = by_class if sample_weight is None else tf.cast(sample_weight, by_class.dtype) * by_class
    return x, y, sample_weight


def _of_classes(weights: Any, labels: Any) -> Any:
    """The weight of each label's class; of one that `weights` ends before, 1, as Keras has it."""
    last = weights.shape[0] - 1
    known = (labels >= 0) & (labels <= last)
    return tf.where(known, tf.gather(weights, tf.clip_by_value(labels, 0, last)), 1.0)


def check_weighable(model: Any, replicas: int) -> None:
    """Raises ScriptError for a model whose losses cannot be weighed over several replicas."""
    if replicas == 1:
        return
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise ScriptError(
                f"{type(model).__name__}.{method} is the script's own, and {replicas} replicas train it",
                why="what part of the global batch's loss a replica's is, only the script knows",
                hint="a loop of your own: loss = rt.run(step, batch), which gives step the rows of the global batch",
            )
    check_losses(model, replicas)


def _loss(model: Any, values: tuple[Any, Any, Any, Any], training: bool, rows: Any, size: Any, replicas: int) -> Any:
    """This replica's part of the global batch's loss: the parts add up to it."""
    x, y, y_pred, sample_weight = values
    if replicas == 1:
        return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
    parts = []
    if model._compile_loss is not None:
        with counting(rows, size):
            parts.append(model._compile_loss(y, y_pred, sample_weight))
    # What regularization adds is the same everywhere; of what layers add, means over a replica's rows, each counts by these.
    parts += [tf.reduce_sum(tf.cast(one, tf.float32)) * tf.cast(rows / size, tf.float32) for one in model.losses]
    return tf.add_n(parts)


def _measure(model: Any, rows: Any, whole: Any, values: tuple[Any, Any, Any, Any], replicas: int) -> None:
    """Updates the metrics: the loss by the rows of this replica, the others by what it computed."""
    x, y, y_pred, sample_weight = values

    def update() -> None:
        for metric in model.metrics[:1]:  # the first is Keras's own, of the loss
            metric.update_state(whole, sample_weight=tf.cast(rows, whole.dtype))
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    _only_with(rows, replicas, False, update)


def _only_with(rows: Any, replicas: int, full: bool, update: Callable[[], Any]) -> None:
    """Updates, on a replica that has rows: one without has another's row, which must not count. `full`: every replica has."""
    if replicas == 1 or full:
        update()
        return

    def counted() -> Any:
        update()
        return tf.constant(0)

    tf.cond(rows > 0, counted, lambda: tf.constant(0))


def _own_step(model: Any, replicas: int, static: bool) -> Callable[[Any], tuple[Any, Any]]:
    """A train_step of the script's own, on one replica: its loss is what it names so, None where nothing is."""

    def step(parts: Any) -> tuple[Any, Any]:
        _, size, values = parts
        logs = model.train_step(values)
        return (logs.get("loss") if isinstance(logs, dict) else None), size

    return step


def loss_of(result: Any) -> Any:
    """The loss in what a step returned: a scalar, the one named "loss", or the first of several; None without."""
    if isinstance(result, dict) and "loss" in result:
        return result["loss"]
    flat = tf.nest.flatten(result)
    return flat[0] if flat and flat[0] is not None and flat[0].shape.rank == 0 else None
