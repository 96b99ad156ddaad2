"""The same global batch at 1, 2, 4 and 8 replicas gives the same losses, by fit and by a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

EPOCHS = 7  # of three steps each
LIMIT = 1e-5


def fitted(run_dir: Path, replicas: int) -> list[float]:
    with jobs.start(run_dir, replicas) as rt:
        data = jobs.dataset()
        model = jobs.compiled(rt, jit=True)
        model.fit(rt.feed(data), epochs=EPOCHS, validation_data=rt.feed(data, train=False))
    return jobs.losses(run_dir)


def by_keras(count: int, batch: int, epochs: int) -> list[float]:
    """The losses of Keras's own fit on one device, step by step."""
    keras.utils.set_random_seed(0)
    model = jobs.network()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    data = jobs.untuned(tf.data.Dataset.from_tensor_slices(jobs.rows(count)).batch(batch))
    return [loss for _ in range(epochs) for x, y in data for loss in [float(model.train_on_batch(x, y))]]


def test_fit_gives_one_curve_at_any_number_of_replicas(tmp_path: Path) -> None:
    """Those that have no row of an epoch's last batch change nothing either."""
    alone = fitted(tmp_path / "1", 1)
    assert len(alone) == 21 and alone[-1] < 0.8 * alone[0]
    values = jobs.lines(tmp_path / "1")[-1]
    assert [line["samples"] for line in jobs.lines(tmp_path / "1")[:3]] == [32, 32, 5]
    for replicas in (2, 4, 8):
        assert fitted(tmp_path / str(replicas), replicas) == pytest.approx(alone, rel=LIMIT), replicas
        there = jobs.lines(tmp_path / str(replicas))[-1]
        for name in ("mae", "val_loss", "val_mae"):
            assert there[name] == pytest.approx(values[name], rel=LIMIT), (replicas, name)


def test_a_loop_of_ones_own_gives_one_curve_too(tmp_path: Path) -> None:
    def trained(replicas: int) -> list[float]:
        run_dir = tmp_path / str(replicas)
        with jobs.start(run_dir, replicas) as rt:
            data = jobs.dataset()
            with rt.scope():
                rate = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.01, 0.005])
                model, optimizer = jobs.network(), keras.optimizers.Adam(rate, global_clipnorm=0.5)
            rt.prepare(model, optimizer)

            def step(batch: Any, size: Any) -> Any:
                x, y = batch
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / size
                optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
                return loss

            def test(batch: Any, size: Any) -> Any:
                x, y = batch
                return tf.reduce_sum((model(x) - y) ** 2), tf.shape(x)[0]

            for _ in rt.epochs(3):
                for batch in rt.feed(data):
                    rt.run(step, batch)
                done, total, count = rt.steps_done, 0.0, 0
                for batch in rt.feed(data, train=False):
                    loss, number = rt.run(test, batch)
                    total, count = total + float(loss), count + int(number)
                assert rt.steps_done == done and count == jobs.ROWS
                rt.log(validation=rt.mean(total, count))
        assert jobs.lines(run_dir)[-1]["validation"] == pytest.approx(total / count, rel=LIMIT)
        assert [line["lr"] for line in jobs.lines(run_dir)] == pytest.approx([0.01] * 4 + [0.005] * 5)
        return jobs.losses(run_dir)

    assert trained(4) == pytest.approx(trained(1), rel=LIMIT)


def test_one_device_trains_as_keras_itself_does(tmp_path: Path) -> None:
    plain = by_keras(64, 32, 2)
    with jobs.start(tmp_path) as rt:
        data = jobs.untuned(tf.data.Dataset.from_tensor_slices(jobs.rows(64)).batch(32))
        keras.utils.set_random_seed(0)
        model = jobs.network()
        model.compile(keras.optimizers.SGD(0.05), "mse", **rt.compile_options())
        rt.prepare(model)
        model.fit(rt.feed(data), epochs=2)
    assert jobs.losses(tmp_path) == pytest.approx(plain, rel=LIMIT)
