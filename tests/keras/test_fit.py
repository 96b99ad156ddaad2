"""What fit and prepare take and refuse, what they say, and what becomes of losses that are no numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy
import pytest
import tensorflow as tf

from hwal import shortage
from hwal.errors import ScriptError
from hwal.host import Host
from hwal_keras import options
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import


def data(x: Any, y: Any) -> Any:
    return jobs.untuned(tf.data.Dataset.from_tensor_slices((x, y)).batch(jobs.BATCH))


@pytest.mark.parametrize(
    ("replicas", "update", "why"),
    [(1, "left out", "all parameters are finite"), (2, "made, and is not saved", "is the first that is not finite")],
)
def test_a_loss_that_is_no_number_ends_the_run_and_is_not_saved(tmp_path: Path, replicas: int, update: str, why: str) -> None:
    x, y = jobs.rows()
    y[50] = numpy.nan
    with pytest.raises(ScriptError) as caught, jobs.start(tmp_path, replicas) as rt:
        jobs.compiled(rt).fit(rt.feed(data(x, y)), epochs=2)
    assert caught.value.what == "the loss of step 2 is nan" and caught.value.where == f"epoch 0; its update was {update}"
    assert why in (caught.value.why or "")
    assert jobs.losses(tmp_path)[1] == "nan" and not (tmp_path / "checkpoints").exists()


def test_an_oom_is_told_with_what_was_in_use(tmp_path: Path) -> None:
    with pytest.raises(ScriptError) as caught, jobs.start(tmp_path) as rt:
        jobs.compiled(rt)
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1024,1024]")
    assert caught.value.what == "out of memory: OOM when allocating tensor with shape[1024,1024]"
    why = caught.value.why or ""
    assert any(str(limit).partition(" in use of ")[2] + "; parameters 516 B, Adam " in why for limit in shortage.limits(Host()))
    assert "--global-batch" in (caught.value.hint or "")


def test_arrays_in_memory_are_shuffled_by_the_runs_seed(tmp_path: Path) -> None:
    x, y = jobs.rows()
    for name in ("a", "b"):
        with jobs.start(tmp_path / name) as rt:
            history = jobs.compiled(rt).fit(x, y, batch_size=jobs.BATCH, epochs=2, validation_data=(x, y), verbose=0)
    assert jobs.losses(tmp_path / "a") == jobs.losses(tmp_path / "b")
    assert set(history.history) == {"loss", "mae", "val_loss", "val_mae"} and len(history.epoch) == 2


def test_several_calls_of_fit_and_loops_before_them_are_one_run(tmp_path: Path) -> None:
    """A loop over epochs, or over steps that end in the midst of one; resumed runs count alike."""

    def train(run_dir: Path, epochs: int = 3, loop: Any = None, **settings: Any) -> list[int]:
        with jobs.start(run_dir, **settings) as rt:
            model = jobs.compiled(rt)
            feed = rt.feed(jobs.dataset())
            for _ in rt.epochs(**(loop or {"count": 1})):
                for batch in feed:
                    rt.run(lambda batch, size: None, batch)
            seen: list[int] = []
            watch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch))
            model.fit(feed, initial_epoch=1, epochs=epochs, callbacks=[watch])
        return seen

    assert train(tmp_path / "a") == [1, 2]
    assert [line["epoch"] for line in jobs.lines(tmp_path / "a")] == [0] * 3 + [1] * 3 + [2] * 3
    assert train(tmp_path / "b", loop={"steps": 6}) == [1, 2]
    assert train(tmp_path / "b", 4, loop={"steps": 6}, resume=str(tmp_path / "b")) == [3]
    assert [line["epoch"] for line in jobs.lines(tmp_path / "b")] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("replicas", [1, 2])
def test_calls_of_fit_share_a_compiled_step_until_something_of_it_changes(tmp_path: Path, replicas: int) -> None:
    traced: list[int] = []

    def loss(y: Any, y_pred: Any) -> Any:
        traced.append(1)
        return (y - y_pred) ** 2

    with jobs.start(tmp_path, replicas) as rt:
        model = jobs.compiled(rt, loss)

        def fit(**options: Any) -> bool:
            """Whether it traces the step anew."""
            before = len(traced)
            model.fit(jobs.dataset(), **options)
            return len(traced) > before

        x, y = jobs.rows()
        assert fit() and not fit() and not fit(epochs=2)
        model.fit(x, y, batch_size=32)
        assert not fit()
        if replicas == 1:  # each of these takes seconds to trace on two
            assert fit(class_weight={0: 2.0}) and not fit(class_weight={0: 2.0}) and fit(class_weight={0: 3.0}) and not fit()
            frozen = model.layers[0].kernel.numpy()
            model.layers[0].trainable = False
            assert fit() and (model.layers[0].kernel.numpy() == frozen).all()
            with rt.scope():
                model.compile("sgd", loss, **jobs.NO_JIT)
            assert fit()


def test_steps_per_epoch_and_steps_per_execution(tmp_path: Path) -> None:
    """Each step has its own loss, rows and learning rate, however many are done for one call."""
    for name, number in (("one", 1), ("many", 4)):
        with jobs.start(tmp_path / name) as rt:
            model = jobs.compiled(rt, steps_per_execution=number)
            model.optimizer.learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.01, 0.02, 0.03])
            model.fit(rt.feed(jobs.dataset().repeat()), epochs=2, steps_per_epoch=5)
        assert [line["lr"] for line in jobs.lines(tmp_path / name)] == pytest.approx([0.01] * 4 + [0.02] * 4 + [0.03] * 2)
    assert jobs.losses(tmp_path / "many") == pytest.approx(jobs.losses(tmp_path / "one"), rel=1e-6)
    assert [line["step"] for line in jobs.lines(tmp_path / "many")] == list(range(1, 11))
    assert [line["samples"] for line in jobs.lines(tmp_path / "many")[:4]] == [32, 32, 5, 32]


def test_early_stopping_ends_a_fit_for_good_and_the_next_one_has_its_own_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At an epoch's end and in the midst of one; a resumed run ends there too, but where it asks for more epochs."""

    class Midst(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    def train(run_dir: Path, epochs: int = 9, **settings: Any) -> list[Any]:
        with jobs.start(run_dir, **settings) as rt:
            model, data = jobs.compiled(rt), jobs.dataset()
            stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=0)
            found = [model.fit(data, epochs=epochs, callbacks=[one]) for one in (stop, Midst())]
            found.append(model.fit(data, epochs=2))
            assert rt.fits.end == rt.epoch
        return [one.epoch for one in found]

    assert train(tmp_path, keep="all") == [[0, 1], [0], [0, 1]]
    whole = jobs.lines(tmp_path)
    assert [line["epoch"] for line in whole] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    for step in (6, 8):
        train(tmp_path / str(step), resume=str(tmp_path / "checkpoints" / f"step-{step:08d}"))
        assert jobs.losses(tmp_path / str(step)) == pytest.approx([line["loss"] for line in whole[step:]], rel=1e-6), step
    assert "stays as a callback has ended it, after 2 of its 9 epochs" in "".join(capsys.readouterr())
    train(tmp_path / "more", epochs=4, resume=str(tmp_path / "checkpoints" / "step-00000006"))
    assert [line["epoch"] for line in jobs.lines(tmp_path / "more")][:4] == [2, 2, 2, 3]


def test_classes_are_weighed_as_keras_weighs_them(tmp_path: Path) -> None:
    x, _ = jobs.rows(32)
    labels = (x[:, 0] > 0).astype("int32")
    weights = {0: 1.0, 1: 5.0}

    def model() -> Any:
        keras.utils.set_random_seed(3)
        made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
        made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return made

    plain = model().train_on_batch(x, labels, class_weight=weights)
    with jobs.start(tmp_path) as rt:
        rt.prepare(model()).fit(rt.feed(data(x, labels)), class_weight=weights)
    assert jobs.losses(tmp_path) == pytest.approx([float(plain)], rel=1e-6)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda rt, model: model.fit(rt.feed([1, 2])), "rt.feed() takes a tf.data.Dataset, not a list"),
        (lambda rt, model: model.fit(iter(())), "a prepared model is fed by a tf.data.Dataset or arrays: x is a"),
        (lambda rt, model: rt.feed(jobs.dataset().unbatch().map(lambda x, y: y[0])), "this one is not batched"),
        (lambda rt, model: model.fit(rt.feed(jobs.dataset().repeat())), "the dataset has no end"),
        (lambda rt, model: model.fit(*jobs.rows(), validation_split=0.1), "model.fit(validation_split=…) is not for"),
        (lambda rt, model: model.fit(rt.feed(jobs.dataset(), train=False)), "this rt.feed() is not one to train on"),
        (lambda rt, model: rt.run(lambda batch, size: 0, 3), "rt.run(step, batch) takes a batch of rt.feed()"),
        (lambda rt, model: rt.prepare(3), "rt.prepare() takes Keras models and optimizers, not a int"),
        (lambda rt, model: [model.fit(jobs.dataset()) for _ in rt.epochs(3)], "model.fit within rt.epochs()"),
    ],
    ids=range(9),
)
def test_what_is_refused(tmp_path: Path, call: Any, what: str) -> None:
    with pytest.raises(ScriptError) as caught, jobs.start(tmp_path) as rt:
        call(rt, jobs.compiled(rt))
    assert what in caught.value.what and caught.value.hint


# compile options and the scope


def test_one_device_compiles_by_xla_and_several_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with jobs.start(tmp_path / "1") as rt:
        assert rt.compile_options() == {"jit_compile": True, "steps_per_execution": 1}
        assert jobs.compiled(rt, jit=True).jit_compile is True
    with jobs.start(tmp_path / "2", 2) as rt:
        assert rt.compile_options()["jit_compile"] is False
        assert jobs.compiled(rt, jit_compile=True).jit_compile is False
    assert "jit_compile is off, which is for one device" in "".join(capsys.readouterr())


def test_a_layer_for_which_keras_turns_xla_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(keras.layers.Dense):
        def __init__(self, units: int, name: str) -> None:
            super().__init__(units, name=name)
            self.supports_jit = False

    with jobs.start(tmp_path) as rt:
        with rt.scope():
            model = keras.Sequential([keras.Input((6,)), Odd(1, name="odd")])
            with pytest.warns(UserWarning, match="Proceeding with"):
                model.compile("sgd", "mse", **rt.compile_options())
        assert options.without_xla(model) == ["odd (Odd)"]
        rt.prepare(model)
    assert "XLA is off, as it must be for odd (Odd)" in "".join(capsys.readouterr())


def test_a_model_from_outside_of_the_scope_is_caught_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ScriptError) as caught, jobs.start(tmp_path, 2) as rt:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, name="late")])
        with rt.scope():
            model.compile("sgd", "mse", **rt.compile_options())
        rt.prepare(model)
    assert caught.value.what.endswith("was built outside of rt.scope()")
    assert (caught.value.where or "").startswith("test_fit.py:") and "late/kernel" in (caught.value.where or "")


def test_a_train_step_of_the_scripts_own_is_for_one_replica(tmp_path: Path) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, values: Any) -> Any:
            return super().train_step(values)

    def train(replicas: int) -> None:
        with jobs.start(tmp_path / str(replicas), replicas) as rt:
            with rt.scope():
                model = Own()
                model.compile("sgd", "mse", **rt.compile_options())
            rt.prepare(model).fit(rt.feed(jobs.dataset()), epochs=2)

    train(1)
    assert jobs.losses(tmp_path / "1")[-1] < jobs.losses(tmp_path / "1")[0]
    with pytest.raises(ScriptError, match=r"Own\.train_step is the script's own, and 2 replicas train it"):
        train(2)


# both frameworks


@pytest.mark.parametrize("order", ["torch, keras", "keras, torch"])
def test_torch_and_keras_in_one_process_do_not_disturb_each_other(tmp_path: Path, order: str) -> None:
    program = f"""
import {order}
import json, hwal, tensorflow as tf, numpy as np
with hwal.start("keras") as rt:
    with rt.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **rt.compile_options())
    rt.prepare(model).fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), verbose=0)
    threads = rt.job.process.threads
print(json.dumps([threads, tf.config.threading.get_intra_op_parallelism_threads(), float(torch.ones(2).sum())]))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HWAL_DEVICE": "cpu", "HWAL_OUT": str(tmp_path / "run")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    threads, taken, total = json.loads(done.stdout.splitlines()[-1])
    assert taken == threads and total == 2.0
