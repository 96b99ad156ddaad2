"""model.predict: every row, in its order, at any number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from hwal.errors import ScriptError
from tests.keras import jobs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("replicas", [1, 4])
def test_every_row_is_predicted_in_its_order(tmp_path: Path, replicas: int) -> None:
    x, y = jobs.rows()
    data = jobs.untuned(tf.data.Dataset.from_tensor_slices((x, y)).batch(jobs.BATCH))
    with jobs.start(tmp_path, replicas) as rt:
        model = jobs.compiled(rt)
        model.fit(rt.feed(data), epochs=1)
        expected = model(x).numpy()
        for given in (x, data, rt.feed(data, train=False)):
            found = model.predict(given)
            assert found.shape == (jobs.ROWS, 1)
            numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        numpy.testing.assert_allclose(model.predict(data, steps=2), expected[:64], rtol=1e-5, atol=1e-6)
        assert model.predict(x[:3], batch_size=2).shape == (3, 1)  # fewer rows than replicas
        for given, what in ((data.repeat(), "the dataset has no end"), (data.take(0), "the dataset is empty"), (3.5, "x is a")):
            with pytest.raises(ScriptError, match=what):
                model.predict(given)


def test_models_of_several_inputs_and_outputs_in_a_narrow_precision(tmp_path: Path) -> None:
    """One that no compile and no data has built, too."""
    x, _ = jobs.rows(10)

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            a, b = inputs
            return {"sum": self.dense(a + b), "wide": keras.ops.cast(a, "float32")}

    with jobs.start(tmp_path, 2) as rt:
        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            with rt.scope():
                model = Two()
            found = rt.prepare(model).predict([x, x], batch_size=4)
            assert found["sum"].dtype == tf.bfloat16.as_numpy_dtype and found["sum"].shape == (10, 3)
            numpy.testing.assert_array_equal(found["wide"], x.astype(tf.bfloat16.as_numpy_dtype).astype("float32"))
        finally:
            keras.config.set_dtype_policy("float32")
