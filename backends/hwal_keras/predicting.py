"""model.predict as it runs here: over all replicas, and every row has its prediction, in the order of the rows.

Keras's own gathers what replicas predict in the precision of the model, and no collective does that in bf16 (Keras 3.15).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import keras
import numpy
import tensorflow as tf

from hwal.errors import ScriptError
from hwal.watch.pulse import EVALUATING
from hwal_keras.data import inputs_of
from hwal_keras.feed import ENDS, cut
from hwal_keras.step import unpack

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

NARROW = (tf.bfloat16, tf.float16)


class Predictor:
    """A prepared model's predict. Its arguments are Keras's."""

    def __init__(self, rt: SharedKerasRuntime, model: Any) -> None:
        self._rt, self._model = rt, model
        self._function: Any = None

    def forget(self) -> None:
        """The model is compiled anew: what was compiled of it before may be otherwise now."""
        self._function = None

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = "auto", steps: int | None = None, callbacks: Any = None
    ) -> Any:
        """What the model gives for every row of arrays, of a dataset or of what rt.feed gave: arrays of shape (rows, …), the
        same on every process, all of which call it. Raises ScriptError for what is none of them."""
        rt, model = self._rt, self._model
        data = inputs_of(x, batch_size)
        if steps is not None:
            data = data.take(steps)
        elif int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise ScriptError("the dataset has no end", where="model.predict", hint="steps=N, or leave .repeat() out")
        self._build(data)
        followers = keras.callbacks.CallbackList(callbacks, model=model)
        followers.on_predict_begin()
        found = []
        with rt.pulse.during(EVALUATING):
            iterator = iter(self._parts(data))
            for number in count():
                followers.on_predict_batch_begin(number)
                try:
                    outputs, rows = self._function(iterator)
                except ENDS:
                    break
                found.append(tf.nest.map_structure(lambda value, rows=int(rows): value.numpy()[:rows], outputs))
                rt.pulse.tick()
                followers.on_predict_batch_end(number, {"outputs": found[-1]})
                rt.stop_if_asked()
        followers.on_predict_end()
        if not found:
            raise ScriptError("the dataset is empty", where="model.predict", hint="its files, its filter or its take")
        return tf.nest.map_structure(lambda *parts: numpy.concatenate(parts), *found)

    def _build(self, data: Any) -> None:
        model, strategy = self._model, self._rt.strategy
        if not model.built:
            first = next(iter(data.take(1)), None)
            if first is not None:
                with strategy.scope():
                    model(unpack(first)[0])
        if model.built:
            self._rt.built(model)
        if self._function is None:
            one = tf.function(self._one, jit_compile=True) if getattr(model, "jit_compile", False) else self._one
            whole = lambda iterator: self._gathered(strategy.run(one, args=(next(iterator),)))  # noqa: E731
            self._function = whole if model.run_eagerly else tf.function(whole, reduce_retracing=True)

    def _parts(self, data: Any) -> Any:
        strategy = self._rt.strategy
        replicas = strategy.num_replicas_in_sync
        return strategy.distribute_datasets_from_function(
            lambda context: cut(data, replicas, context.input_pipeline_id, context.num_input_pipelines)
        )

    def _one(self, parts: Any) -> tuple[Any, Any]:
        """A replica's predictions, those for the rows that fill it up among them, and the rows of the whole batch."""
        _, size, values = parts
        return self._model(unpack(values)[0], training=False), size

    def _gathered(self, results: tuple[Any, Any]) -> tuple[Any, Any]:
        """The predictions of all replicas, one behind the other: what fills up the last stands at the end."""
        strategy = self._rt.strategy
        outputs, size = results
        rows = strategy.experimental_local_results(size)[0]
        if strategy.num_replicas_in_sync == 1:
            return outputs, rows
        return tf.nest.map_structure(self._whole, outputs), rows

    def _whole(self, value: Any) -> Any:
        strategy = self._rt.strategy
        parts = strategy.experimental_local_results(value)
        kind = parts[0].dtype
        if kind not in NARROW:
            return strategy.gather(value, axis=0)
        return tf.cast(strategy.gather(strategy.run(tf.cast, args=(value, tf.float32)), axis=0), kind)
