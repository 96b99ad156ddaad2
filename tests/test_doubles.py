"""The base Runtime holds frameworks that are not here yet: strategies with replicas, model.fit, lazy tensors."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hwal.env import Settings
from hwal.errors import Preempted
from tests.doubles import keras, xla
from tests.doubles.job import make_job
from tests.doubles.problem import BATCH, LEARNING_RATE, ROWS, STEPS_PER_EPOCH, losses_by_hand

EPOCHS = 3


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def check_run(run_dir: Path, epochs: int = EPOCHS) -> None:
    """metrics.jsonl tells every global step once, with the loss of the hand-written loop."""
    found = lines(run_dir)
    assert [line["step"] for line in found] == list(range(1, epochs * STEPS_PER_EPOCH + 1))
    assert [line["loss"] for line in found] == pytest.approx(losses_by_hand(epochs), rel=1e-9)
    assert [line["samples"] for line in found[:STEPS_PER_EPOCH]] == [6, 6, 6, 2]
    assert [line["epoch"] for line in found] == [n for n in range(epochs) for _ in range(STEPS_PER_EPOCH)]
    assert {line["lr"] for line in found} == {LEARNING_RATE}
    assert found[-1]["loss"] < found[0]["loss"] / 2


# keras


def keras_runtime(run_dir: Path, replicas: int = 2, resume: bool = False) -> keras.KerasDouble:
    settings = Settings(resume=str(run_dir) if resume else None)
    rt = keras.KerasDouble(make_job(run_dir, framework="keras", devices=replicas, settings=settings))
    rt.start()
    return rt


def keras_script(rt: keras.KerasDouble, callbacks: tuple[keras.Callback, ...] = ()) -> keras.Model:
    """What a user writes: scope, compile, prepare, fit."""
    with rt:
        with rt.scope():
            model = keras.Model()
            model.compile(LEARNING_RATE, **rt.compile_options())
        model = rt.prepare(model)
        model.fit(rt.feed(keras.Dataset(ROWS, BATCH)), epochs=EPOCHS, callbacks=callbacks)
        rt.save()
    return model


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_keras_fit_trains_as_by_hand_with_any_number_of_replicas(tmp_path: Path, replicas: int) -> None:
    keras_script(keras_runtime(tmp_path, replicas))
    check_run(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000012"]


def test_keras_fit_stops_for_a_signal_and_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    class Signals(keras.Callback):
        def on_train_batch_end(self, model: keras.Model, logs: dict[str, float]) -> None:
            if rt.steps_done == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    rt = keras_runtime(tmp_path)
    with pytest.raises(Preempted):
        keras_script(rt, (Signals(),))
    assert json.loads((tmp_path / "preempted.json").read_text())["signal"] == "SIGTERM"
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6]
    keras_script(keras_runtime(tmp_path, replicas=3, resume=True))
    check_run(tmp_path)


def test_keras_custom_loop_counts_training_steps_only(tmp_path: Path) -> None:
    rt = keras_runtime(tmp_path)
    data = keras.Dataset(ROWS, BATCH)
    with rt:
        with rt.scope():
            model = keras.Model()
            model.compile(LEARNING_RATE, **rt.compile_options())
            model.build()
        model = rt.prepare(model)

        def train_step(rows: tuple[keras.Row, ...], total: int) -> float:
            loss, by_w, by_b, _ = model.gradients(rows)
            pending.append((by_w / total, by_b / total))
            return loss / total

        def test_step(rows: tuple[keras.Row, ...]) -> float:
            return model.gradients(rows)[0]

        for _ in rt.epochs(EPOCHS):
            for batch in rt.feed(data):
                pending: list[tuple[float, float]] = []
                rt.run(train_step, batch, sum(map(len, batch)))
                for by_w, by_b in pending:
                    model.apply(by_w, by_b)
            done = rt.steps_done
            score = sum(rt.run(test_step, batch) for batch in rt.feed(data, train=False)) / len(ROWS)
            rt.log(validation=score)
            assert rt.steps_done == done
    check_run(tmp_path)
    logged = [line["validation"] for line in lines(tmp_path) if "validation" in line]
    assert len(logged) == EPOCHS and logged == sorted(logged, reverse=True)


# torch_xla


def xla_runtime(run_dir: Path, micro_batch: int | None = None, resume: bool = False) -> xla.XlaDouble:
    settings = Settings(micro_batch=micro_batch, resume=str(run_dir) if resume else None)
    rt = xla.XlaDouble(make_job(run_dir, framework="torch", settings=settings))
    rt.start()
    return rt


def xla_script(rt: xla.XlaDouble, epochs: int = EPOCHS) -> xla.Model:
    """The torch script of specs/runtime.md, with a pair for the loss and values logged while they are still lazy."""
    loader = xla.Loader(ROWS, BATCH)
    with rt:
        with rt.scope():
            model = xla.Model()
            optimizer = xla.SGD(model.parameters.values(), LEARNING_RATE)
        model, optimizer = rt.prepare(model, optimizer)
        for _ in rt.epochs(epochs):
            for batch in rt.feed(loader):
                with rt.autocast():
                    loss = model.loss(batch)
                rt.backward((loss, float(len(batch))))
                if rt.step(optimizer):
                    rt.log(slope=model.parameters["w"] * 1.0)
        total = xla.tensor(rt.device, 0.0)
        for batch in rt.feed(loader, train=False):
            total = total + model.loss(batch)
        rt.log(validation=rt.mean(total, len(ROWS)))
        rt.save()
    return model


@pytest.mark.parametrize("micro_batch", [None, 4, 1])
def test_xla_trains_as_by_hand_and_nothing_is_read_before_it_is_computed(tmp_path: Path, micro_batch: int | None) -> None:
    rt = xla_runtime(tmp_path, micro_batch)
    model = xla_script(rt)
    check_run(tmp_path)
    assert rt.device.early_reads == []
    micro_batches = {None: 4, 4: 7, 1: 20}[micro_batch] * EPOCHS
    evaluation = {None: 4, 4: 7, 1: 20}[micro_batch]
    # prepare, one for each micro-batch, the mean, save, the end
    assert rt.device.mark_steps == 1 + micro_batches + evaluation + 1 + 1 + 1
    assert rt.autocasts == micro_batches
    found = lines(tmp_path)
    assert found[-1]["slope"] == pytest.approx(float(model.parameters["w"]))
    assert found[0]["slope"] == pytest.approx(LEARNING_RATE * sum(2 * y * x for x, y in ROWS[:BATCH]) / BATCH)
    errors = [float(model.parameters["w"]) * x + float(model.parameters["b"]) - y for x, y in ROWS]
    assert found[-1]["validation"] == pytest.approx(sum(e * e for e in errors) / len(ROWS))


def test_xla_would_notice_a_reporter_that_reads_lazy_values(tmp_path: Path) -> None:
    """The check above can fail: a log() that hands lazy values straight to the reporter is seen."""
    rt = xla_runtime(tmp_path)
    with rt:
        rt.step_done(1.0, None, 1)
        super(xla.XlaDouble, rt).log(value=xla.tensor(rt.device, 1.0) * 2.0)
        rt.reporter._drain()
    assert rt.device.early_reads


def test_xla_resumes_in_the_middle_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = xla_runtime(tmp_path)

    def log(**values: Any) -> None:
        xla.XlaDouble.log(rt, **values)
        if rt.steps_done == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(rt, "log", log)
    with pytest.raises(Preempted):
        xla_script(rt)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    xla_script(xla_runtime(tmp_path, micro_batch=2, resume=True))
    check_run(tmp_path)
