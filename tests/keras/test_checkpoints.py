"""Checkpoints of Keras runs: saved at any number of replicas and loaded at another, in the midst of an epoch too."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from hwal import checkpoint, shortage
from hwal.checkpoint import Position
from hwal.errors import CheckpointError, OutputError, Preempted
from hwal.progress import Progress
from hwal_keras.fits import Fits
from hwal_keras.passes import Passes
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

EPOCHS = 4  # of three steps each


class Signals(keras.callbacks.Callback):
    """Sends this process SIGTERM after a step of its run."""

    def __init__(self, rt: Any, step: int) -> None:
        super().__init__()
        self.rt, self.step = rt, step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.rt.steps_done == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def train(
    run_dir: Path, replicas: int = 1, stop: int | None = None, epochs: int = EPOCHS, validate: bool = True, **settings: Any
) -> keras.callbacks.History:
    with jobs.start(run_dir, replicas, **settings) as rt:
        data = jobs.dataset()
        model = jobs.compiled(rt)
        callbacks = [] if stop is None else [Signals(rt, stop)]
        held_out = rt.feed(data, train=False) if validate else None
        return model.fit(rt.feed(data), epochs=epochs, validation_data=held_out, callbacks=callbacks)


def stopped(run_dir: Path, step: int, replicas: int = 1, validate: bool = True) -> None:
    with pytest.raises(Preempted) as caught:
        train(run_dir, replicas, step, validate=validate)
    assert caught.value.code == 75
    assert json.loads((run_dir / "preempted.json").read_text()) == {"signal": "SIGTERM", "step": step + 1}


@pytest.mark.parametrize("step", [4, 5], ids=["in the midst of an epoch", "at the last step of one"])
def test_a_signal_saves_and_resume_goes_on_as_if_nothing_had_been(tmp_path: Path, step: int) -> None:
    train(tmp_path / "whole")
    stopped(tmp_path / "cut", step)
    train(tmp_path / "cut", resume=str(tmp_path / "cut"))
    assert jobs.losses(tmp_path / "cut") == pytest.approx(jobs.losses(tmp_path / "whole"), rel=1e-6)
    assert not (tmp_path / "cut" / "preempted.json").exists()
    for here, there in zip(jobs.lines(tmp_path / "cut")[8::3], jobs.lines(tmp_path / "whole")[8::3], strict=True):
        assert here["val_loss"] == pytest.approx(there["val_loss"], rel=1e-6)
        assert [here[name] for name in ("step", "epoch", "samples")] == [there[name] for name in ("step", "epoch", "samples")]


def test_a_checkpoint_of_eight_replicas_goes_on_on_one_and_on_two(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(whole, validate=False)  # evaluations by eight replicas would take seconds more to trace
    stopped(cut, 4, replicas=8, validate=False)
    train(cut, epochs=3, validate=False, resume=str(cut))
    train(cut, 2, validate=False, resume=str(cut))
    assert jobs.losses(tmp_path / "cut") == pytest.approx(jobs.losses(tmp_path / "whole"), rel=1e-5)


def test_fit_saves_after_every_epoch_and_keeps_what_keep_says(tmp_path: Path) -> None:
    train(tmp_path, keep="last:1,best:val_loss")
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    values = {line["step"]: line["val_loss"] for line in jobs.lines(tmp_path) if "val_loss" in line}
    assert names == {"step-00000012", f"step-{min(values, key=values.__getitem__):08d}"}
    newest = tmp_path / "checkpoints" / "step-00000012"
    assert {path.name for path in newest.iterdir()} == {"hwal.json", "model.weights.h5", "state.h5"}
    alone = jobs.network()
    alone.load_weights(newest / "model.weights.h5")  # by Keras itself
    x, y = jobs.rows()
    errors = numpy.abs(alone.predict(x, verbose=0) - y)
    assert float(errors.mean()) == pytest.approx(jobs.lines(tmp_path)[-1]["val_mae"], rel=1e-5)


def test_a_run_that_is_done_goes_on_to_more_epochs(tmp_path: Path) -> None:
    """What fit returns has all its epochs then, those before the resume too; also where nothing is left to do."""
    whole = train(tmp_path / "whole")
    train(tmp_path / "parts", epochs=2)
    parts = train(tmp_path / "parts", resume=str(tmp_path / "parts"))
    assert jobs.losses(tmp_path / "parts") == pytest.approx(jobs.losses(tmp_path / "whole"), rel=1e-6)
    for history in (parts, train(tmp_path / "else", resume=str(tmp_path / "whole"))):
        assert history.epoch == [0, 1, 2, 3] and list(history.history) == list(whole.history)
        for name, values in whole.history.items():
            assert history.history[name] == pytest.approx(values, rel=1e-5), name


def test_dropout_and_passes_in_one_go_are_after_a_resume_those_of_the_whole_run(tmp_path: Path) -> None:
    """A dataset's passes follow each other in one fit, end in the midst of one, and come singly in the next."""

    def train(run_dir: Path, stop: int | None = None, **settings: Any) -> list[float]:
        with jobs.start(run_dir, **settings) as rt:
            with rt.scope():
                model = jobs.network()
                model = keras.Sequential([model.layers[0], keras.layers.Dropout(0.5), model.layers[1]])
                model.compile(keras.optimizers.SGD(0.05), "mse", **jobs.NO_JIT)
            data, calls = jobs.dataset(), [] if stop is None else [Signals(rt, stop)]
            rt.prepare(model).fit(data, epochs=2, steps_per_epoch=4, callbacks=calls)
            model.fit(data, epochs=2, callbacks=calls)
        return jobs.losses(run_dir)

    whole = train(tmp_path / "whole")
    assert len(whole) == 14
    for stop in (5, 9, 11):
        with pytest.raises(Preempted):
            train(tmp_path / str(stop), stop)
        assert train(tmp_path / str(stop), resume=str(tmp_path / str(stop))) == pytest.approx(whole, rel=1e-6), stop


@pytest.mark.parametrize("kind", ["made anew", "made of an older one", "another later", "two by turns", "twice in an epoch"])
def test_a_loop_goes_on_in_the_order_that_the_whole_run_has(tmp_path: Path, kind: str) -> None:
    """Whatever datasets it reads, and wherever in an epoch it is cut; a loss tells which rows a batch has, in which order."""

    def shuffled(seed: int | None = None) -> Any:
        return jobs.untuned(tf.data.Dataset.range(12).shuffle(12, seed=seed).batch(4))

    def order(batch: Any, size: Any) -> Any:
        return tf.reduce_sum(tf.cast(batch * [1, 12, 144, 1728], tf.float32))

    def train(run_dir: Path, stop: int | None = None, epochs: int = 5, **settings: Any) -> list[float]:
        with jobs.start(run_dir, **settings) as rt:
            rt.prepare()
            one, other = shuffled(), shuffled()
            for epoch in rt.epochs(epochs):
                anew = shuffled(epoch) if kind in ("made anew", "twice in an epoch") else one.map(lambda rows: rows)
                data = {
                    "made anew": anew,
                    "made of an older one": anew,
                    "another later": one if epoch < 2 else other,
                    "two by turns": (one, other)[epoch % 2],
                    "twice in an epoch": anew,
                }[kind]
                for _ in range(1 + (kind == "twice in an epoch")):
                    for batch in rt.feed(data):
                        if rt.steps_done == stop:
                            rt.stop_request.name = "SIGTERM"
                        rt.run(order, batch)
            rt.save()
        return jobs.losses(run_dir)

    whole = train(tmp_path / "whole")
    assert len({*whole}) > 9
    for stop in (4, 13):
        run_dir = tmp_path / str(stop)
        with pytest.raises(Preempted):
            train(run_dir, stop)
        assert train(run_dir, resume=str(run_dir)) == whole, stop
    if kind != "two by turns":  # of which the next is nobody's guess before it has come
        train(tmp_path / "part", epochs=3)
        assert train(tmp_path / "part", resume=str(tmp_path / "part")) == whole


def test_what_earlier_checkpoints_say_of_passes_and_fits_is_read_too() -> None:
    progress = Progress(0, 1)
    progress.restore(Position(0, 2, 0, 1, 4, 7, 28, 1))  # in the midst of an epoch
    passes, data = Passes(progress), [jobs.dataset(), jobs.dataset()]
    passes.resume([2, 1])
    assert [passes.number(one) for one in data] == [0, 1] and passes.to_save(None) == [[None, [2]], [None, [1]]]
    fits = Fits()
    fits.resume({})
    assert [fits.begin(2, progress) for _ in range(2)] == [(0, None), (2, None)] and progress.steps_in_feed == 1


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    flushed = checkpoint.sync
    monkeypatch.setattr(checkpoint, "sync", lambda folder: (go.wait(60), flushed(folder)))
    with jobs.start(tmp_path) as rt:
        model = jobs.compiled(rt)
        model.build((None, 6))
        rt.built(model)
        before = [weight.numpy() for weight in model.weights]
        folder = rt.save()
        assert not folder.exists()
        for weight in model.weights:
            weight.assign(weight + 1.0)
        go.set()
        rt.saving.wait()
        model.load_weights(folder / "model.weights.h5")
        assert all((weight.numpy() == was).all() for weight, was in zip(model.weights, before, strict=True))


def test_without_room_for_a_copy_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shortage, "available", lambda host: 100)
    with jobs.start(tmp_path) as rt:
        jobs.compiled(rt).build((None, 6))
        assert rt.save().exists()
    assert "would not leave room" in "".join(capsys.readouterr())


def test_a_checkpoint_that_fails_ends_the_run_at_the_next_step_and_is_tried_again_at_a_signal(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="could not be written"), jobs.start(tmp_path / "a") as rt:
        rt.saving.run(fails)
        rt.stop_if_asked()
    with pytest.raises(Preempted), jobs.start(tmp_path / "b") as rt:
        jobs.compiled(rt).build((None, 6))
        rt.step_done(1.0, None, 1)
        rt.saving.run(fails)
        rt.stop_request.name = "SIGTERM"
        rt.stop_if_asked()
    assert (tmp_path / "b" / "checkpoints" / "step-00000001" / "hwal.json").exists()


def fails() -> None:
    raise OutputError("the checkpoint could not be written: no space")


def test_another_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    with pytest.raises(CheckpointError) as caught, jobs.start(tmp_path, resume=str(tmp_path)) as rt:
        with rt.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(17), keras.layers.Dense(1)])
            model.compile("adam", "mse", **rt.compile_options())
        rt.prepare(model)
    assert caught.value.what.startswith("the model is not the one that was saved")
    with pytest.raises(CheckpointError, match="is Adam, this run's is SGD"), jobs.start(tmp_path, resume=str(tmp_path)) as rt:
        with rt.scope():
            model = jobs.network()
            model.compile("sgd", "mse", **rt.compile_options())
        rt.prepare(model)


def test_a_model_that_is_compiled_after_prepare_or_anew_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Of one class twice: what an optimizer has gathered is loaded into that one, and not into the one before."""

    def tuned(run_dir: Path, stop: int | None = None, again: bool = True, **settings: Any) -> Any:
        with jobs.start(run_dir, **settings) as rt:
            data = jobs.dataset()
            with rt.scope():
                model = rt.prepare(jobs.network())
                model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **jobs.NO_JIT)
            callbacks = [] if stop is None else [Signals(rt, stop)]
            model.fit(rt.feed(data), epochs=1, validation_data=rt.feed(data, train=False), callbacks=callbacks)
            if again:
                with rt.scope():
                    model.compile(keras.optimizers.Adam(0.001), "mae", metrics=["mse"], **jobs.NO_JIT)
            fits = model.fit(rt.feed(data), epochs=2, validation_data=rt.feed(data, train=False), callbacks=callbacks)
            x, y = jobs.rows()
            expected = float(numpy.abs(model(x).numpy() - y).mean()), float(((model(x).numpy() - y) ** 2).mean())
            assert rt.optimizers == [model.optimizer]
        return fits.history, expected

    history, (mae, mse) = tuned(tmp_path / "whole")
    regularized = history["val_loss"][-1] - mae
    assert history["val_mse"][-1] == pytest.approx(mse, rel=1e-5) and 0 < regularized < 0.5
    for stop in (1, 4, 7):
        run_dir = tmp_path / str(stop)
        with pytest.raises(Preempted):
            tuned(run_dir, stop)
        if stop == 4:
            with pytest.raises(CheckpointError, match="had compiled a model anew before this step"):
                tuned(run_dir, again=False, resume=str(run_dir))
        tuned(run_dir, resume=str(run_dir))
        assert jobs.losses(run_dir) == pytest.approx(jobs.losses(tmp_path / "whole"), rel=1e-6), stop


def test_a_model_that_is_compiled_anew_is_held_against_the_hardware_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with jobs.start(tmp_path, 2) as rt:
        model = jobs.compiled(rt)
        with rt.scope():
            model.compile(keras.optimizers.SGD(0.1, global_clipnorm=0.5), "mse", jit_compile=True)
        assert model.jit_compile is False and model.optimizer._hwal_reduces
    assert "jit_compile is off" in "".join(capsys.readouterr())
