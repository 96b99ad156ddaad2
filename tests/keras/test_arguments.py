"""What fit, evaluate, rt.run and rt.start are given: taken as Keras takes it, or refused in words before the first step."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from hwal.errors import ScriptError, VersionError
from hwal_keras import options
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

ROOT = Path(__file__).parents[2]


def test_weights_and_several_inputs_are_taken_as_keras_takes_them(tmp_path: Path) -> None:
    """Of one prepared model with two inputs; what Keras's own evaluate says of the same arrays is what is expected."""
    x, y = jobs.rows(64)
    inputs = [x, x[:, :3]]
    weights = numpy.linspace(0, 2, 64).astype("float32")
    with jobs.start(tmp_path) as rt:
        with rt.scope():
            one, other = keras.Input((6,)), keras.Input((3,))
            model = keras.Model([one, other], keras.layers.Dense(1)(keras.layers.Concatenate()([one, other])))
            model.compile("sgd", "mse", weighted_metrics=["mae"], **jobs.NO_JIT)
        rt.prepare(model)
        history = model.fit(
            inputs, y, sample_weight=weights, batch_size=32, validation_data=(inputs, y, weights), shuffle=False
        ).history  # fmt: skip
        known = len(rt.passes._known)
        for _ in range(3):
            ours = model.evaluate(inputs, y, batch_size=32, sample_weight=weights)
        kept = [one for one in rt.passes._known[known:] if one.data() is not None]
        keras_says = keras.Model.evaluate(model, inputs, y, batch_size=32, sample_weight=weights, verbose=0)
    assert ours == pytest.approx(keras_says, rel=1e-5)
    assert [history["val_loss"][0], history["val_mae"][0]] == pytest.approx(keras_says, rel=1e-5)
    assert not kept, "datasets that are done with are not kept"


def test_classes_without_a_weight_weigh_one_as_keras_has_it(tmp_path: Path) -> None:
    x, _ = jobs.rows(32)
    labels = (numpy.arange(32) % 4).astype("int32")

    def model(jit: bool) -> Any:
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
        return made

    for weights in ({1: 5.0}, {0: 2.0, 2: 0.5}):
        plain = float(model(False).train_on_batch(x, labels, class_weight=weights))
        for jit in (False, True):
            run_dir = tmp_path / f"{max(weights)}-{jit}"
            with jobs.start(run_dir) as rt:
                rt.prepare(model(jit)).fit(x, labels, batch_size=32, shuffle=False, class_weight=weights)
            assert jobs.losses(run_dir) == pytest.approx([plain], rel=1e-6), (weights, jit)


def test_steps_that_tell_no_loss_are_steps(tmp_path: Path) -> None:
    """A train_step of a GAN's, several to a call too, and rt.run's steps that return nothing, on one replica and on two."""

    class Two(keras.Sequential):
        def train_step(self, values: Any) -> Any:
            return {"d_loss": tf.constant(1.0), "g_loss": tf.reduce_mean(values[0])}

    with jobs.start(tmp_path / "own") as rt:
        for number in (1, 2):
            model = Two([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=number, **jobs.NO_JIT)
            rt.prepare(model).fit(*jobs.rows(96), batch_size=32)
        assert rt.steps_done == 6
    assert all(line.get("loss") is None for line in jobs.lines(tmp_path / "own"))
    for replicas in (1, 2):
        with jobs.start(tmp_path / str(replicas), replicas) as rt:
            with rt.scope():
                total = keras.metrics.Sum()

            def count(batch: Any, size: Any, total: Any = total) -> None:
                total.update_state(tf.ones_like(batch[1]))

            for _ in rt.epochs(1):
                for batch in rt.feed(jobs.dataset()):
                    assert rt.run(count, batch) is None
            assert rt.steps_done == 3 and float(total.result()) == jobs.ROWS


def test_a_test_step_of_the_scripts_own_counts_every_row_once(tmp_path: Path) -> None:
    """One row is left for the last batch, which one of two replicas has; the other is filled up with a copy."""

    class Own(keras.Sequential):
        def test_step(self, values: Any) -> Any:
            y = values[1]
            self.total.update_state(tf.ones_like(y))
            super().test_step(values)
            return {"total": self.total.result()}

    found = []
    for replicas in (1, 2):
        with jobs.start(tmp_path / str(replicas), replicas) as rt:
            with rt.scope():
                model = Own([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
                model.total = keras.metrics.Sum(name="total")
                model.compile("sgd", "mse", metrics=["mae"], **jobs.NO_JIT)
            found.append(rt.prepare(model).evaluate(*jobs.rows(33), batch_size=32, return_dict=True))
    assert found[0]["total"] == found[1]["total"] == 33
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_what_does_not_fit_is_told_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = jobs.rows(64)
    endless = jobs.dataset().repeat()
    cases: list[tuple[Any, str]] = [
        (lambda rt, model: model.fit(x, y[:60]), "the arrays have different numbers of rows: x: 64; y: 60"),
        (lambda rt, model: model.fit(x, [float(one) for one in y[:, 0]]), "arrays: part 0 of y is a float"),
        (lambda rt, model: model.fit(jobs.dataset(), y), "y is given beside a dataset"),
        (lambda rt, model: model.fit(jobs.dataset(), sample_weight=y), "sample_weight is given beside a dataset"),
        (lambda rt, model: model.fit(x, y, validation_data=(x, y, y, y)), "validation_data is a tuple of 4"),
        (lambda rt, model: model.fit(x, y, validation_data=endless), "the dataset has no end"),
        (lambda rt, model: model.evaluate(rt.feed(endless, train=False)), "the dataset has no end"),
        (lambda rt, model: model.fit(x, {"a": y, "b": y}, class_weight={0: 2.0}), "class_weight is for one label a row"),
        (lambda rt, model: model.fit(x, y[:, :, None], class_weight={0: 2.0}), "there are labels of 3 dimensions"),
    ]
    with jobs.start(tmp_path) as rt:
        model = jobs.compiled(rt)
        for call, what in cases:
            with pytest.raises(ScriptError) as caught:
                call(rt, model)
            assert what in caught.value.what and caught.value.hint
        assert rt.steps_done == 0
        model.evaluate(rt.feed(endless, train=False), steps=2)
        for call, what in (
            (lambda: model.fit(jobs.dataset(), batch_size=4), "batch_size=4 is for arrays: the dataset's own batches stay"),
            (lambda: model.fit(x, y, sample_weight=numpy.ones(64), class_weight={0: 2.0}), None),
        ):
            call()
            assert what is None or what in capsys.readouterr().err


def test_what_several_replicas_cannot_do_is_told_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(**options: Any) -> Any:
        model = jobs.network()
        model.compile(keras.optimizers.Adam(0.01, **options), "mse", metrics=["mae"], **jobs.NO_JIT)
        return model

    with jobs.start(tmp_path, 2) as rt:
        outside = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="geometric")
        with rt.scope():
            within = jobs.network()
            accumulates, averages = compiled(gradient_accumulation_steps=2), compiled(use_ema=True, ema_overwrite_frequency=2)
            mixes = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(1)])
            mixes.compile("sgd", "mse", **jobs.NO_JIT)
            free = keras.optimizers.SGD(0.1)
        within.compile("sgd", "mse", metrics=["mae"], **jobs.NO_JIT)
        cases: list[tuple[Any, str]] = [
            (lambda: rt.prepare(outside, free), "Sequential geometric was built outside of rt.scope()"),
            (lambda: rt.prepare(within), "the metric loss was built outside of rt.scope()"),
            (lambda: rt.prepare(accumulates), "Adam(gradient_accumulation_steps=2) is for one replica, and 2 train"),
            (lambda: rt.prepare(averages), "Adam(ema_overwrite_frequency=2) is for one replica, and 2 train"),
        ]
        for call, what in cases:
            with pytest.raises(ScriptError) as caught:
                call()
            assert caught.value.what == what and caught.value.hint
        rt.models.clear()
        rt.optimizers.clear()
        model = rt.prepare(mixes)
        assert "norm: batch norm sees one replica's part" in capsys.readouterr().err
        for batch in rt.feed(jobs.dataset(), train=False):
            with pytest.raises(ScriptError, match="the step returns a row for each of its replica's"):
                rt.run(lambda values, size: model(values[0]), batch)
            break


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_empty_dataset_is_told_and_no_loss_made_up(tmp_path: Path, replicas: int) -> None:
    x, y = jobs.rows(64)
    none = jobs.dataset().filter(lambda x, y: False)
    with jobs.start(tmp_path, replicas) as rt:
        model = jobs.compiled(rt)
        calls = (
            lambda: model.evaluate(none),
            lambda: model.fit(none),
            lambda: list(rt.feed(none)),
            lambda: list(rt.feed(none, train=False)),
            lambda: model.evaluate(x[:0], y[:0]),
            lambda: model.fit(none, epochs=2, steps_per_epoch=3),
            lambda: model.fit(jobs.dataset(20, 32).unbatch().batch(32, drop_remainder=True)),
        )
        for call in calls[: 2 if replicas > 1 else None]:  # each more takes a second to trace there
            with pytest.raises(ScriptError, match="the dataset is empty"):
                call()
        for call in (lambda: model.evaluate(x, y, steps=0), lambda: model.fit(x, y, steps_per_epoch=0)):
            with pytest.raises(ScriptError, match="=0 is no step at all"):
                call()
        with pytest.raises(ScriptError, match="the dataset is empty"):
            model.fit(x, y, validation_data=(x[:0], y[:0]))
        assert rt.steps_done == 0


def test_a_keras_that_weighs_replicas_otherwise_is_refused() -> None:
    options.check_version(keras.__version__)
    with pytest.raises(VersionError, match=r"this is Keras 3\.5\.0, and hwal trains by Keras 3\.8 or later"):
        options.check_version("3.5.0")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert f"keras>={'.'.join(map(str, options.OLDEST))}" in extras["keras"]
