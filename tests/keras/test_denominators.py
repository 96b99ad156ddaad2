"""Losses that are divided by other things than rows: one loss, and one curve, at one replica and at several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from hwal.errors import ScriptError
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

ROWS, BATCH, LONG = 53, 32, 4  # the last batch has 21 rows; the first replicas' rows are hidden and weighed otherwise
RANDOM = numpy.random.default_rng(1)
TOKENS = RANDOM.integers(1, 9, (ROWS, LONG)) * (RANDOM.random((ROWS, LONG)) < numpy.linspace(0.1, 1, ROWS)[:, None])
LABELS = numpy.where(RANDOM.random((ROWS, LONG)) < numpy.linspace(0.9, 0, ROWS)[:, None], -1, TOKENS % 3)
WEIGHTS = numpy.linspace(0.1, 5, ROWS).astype("float32")[:, None]


def classes(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def tagger(masks: bool) -> Any:
    return keras.Sequential([keras.Input((LONG,)), keras.layers.Embedding(9, 4, mask_zero=masks), keras.layers.Dense(3)])


def outputs() -> Any:
    tokens = keras.Input((LONG,))
    seen = keras.layers.Embedding(9, 4, embeddings_regularizer="l2")(tokens)
    return keras.Model(tokens, {name: keras.layers.Dense(3, name=name)(seen) for name in ("a", "b")})


def scalar(y: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


KNOWN = numpy.maximum(LABELS, 0)
CASES: dict[str, tuple[Any, Any, Any]] = {  # name -> (network, loss, (y[, weights]))
    "ignored class": (lambda: tagger(False), classes(ignore_class=-1), (LABELS,)),
    "mask and weights": (lambda: tagger(True), classes(ignore_class=-1), (LABELS, WEIGHTS)),
    "sum of weights": (lambda: tagger(True), classes(reduction="mean_with_sample_weight"), (KNOWN, WEIGHTS)),
    "sum": (lambda: tagger(True), classes(reduction="sum"), (KNOWN, WEIGHTS / 100)),
    "mean of one's own": (lambda: tagger(False), scalar, (KNOWN,)),
    "two": (outputs, {"a": classes(), "b": classes(ignore_class=-1)}, ({"a": KNOWN, "b": LABELS},)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_loss_is_divided_by_is_the_global_batchs(tmp_path: Path, case: str) -> None:
    """Keras's own loss of the first batch on one device, and the curve of the next steps; 32 rows on 3 replicas are ragged."""
    network, loss, labels = CASES[case]

    def trained(replicas: int) -> tuple[list[float], dict[str, float]]:
        run_dir = tmp_path / str(replicas)
        with jobs.start(run_dir, replicas) as rt:
            data = tf.data.Dataset.from_tensor_slices((TOKENS, *labels)).batch(BATCH)
            with rt.scope():
                model = network()
                model.compile(keras.optimizers.SGD(0.5), loss, **jobs.NO_JIT)
            rt.prepare(model)
            history = model.fit(rt.feed(data), epochs=2, validation_data=rt.feed(data, train=False)).history
        return jobs.losses(run_dir), {name: values[-1] for name, values in history.items()}

    alone, last = trained(1)
    several, there = trained(3)
    assert several == pytest.approx(alone, rel=1e-5) and len(alone) == 4 and alone[2] < alone[0]
    assert there == pytest.approx(last, rel=1e-5)


def test_a_loss_that_alone_knows_what_it_divides_by_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Own(keras.losses.Loss):
        def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return tf.reduce_mean((y_pred - y_true) ** 2)

    with jobs.start(tmp_path, 2) as rt:
        for loss, what in (
            (Own(), "Own.__call__ is the script's own"),
            (keras.losses.MeanSquaredError(None), "reduction None"),
        ):
            with pytest.raises(ScriptError) as caught:
                jobs.compiled(rt, loss)
            assert what in caught.value.what and caught.value.hint and rt.steps_done == 0
