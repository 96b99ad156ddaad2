"""Keras jobs for tests: a started Runtime of the CPU, a small model, its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy
import tensorflow as tf

from hwal.env import Settings
from hwal.plan import make_plan
from hwal.runtime import Job
from hwal.topology import Device
from hwal.values import Choice, Decision, Request, Target, World
from hwal_cpu import backend
from hwal_cpu.keras_runtime import CpuKerasRuntime
from hwal_keras.runtime import SharedKerasRuntime

ROWS, BATCH = 69, 32  # the last batch of an epoch has 5 rows: four replicas have 2, 2, 1 and none, and three of eight none
NO_JIT = {"jit_compile": False}


def start(run_dir: Path, replicas: int = 1, **settings: Any) -> CpuKerasRuntime:
    """A Runtime with as many logical replicas."""
    run_dir.mkdir(parents=True, exist_ok=True)
    chosen = Settings(precision="fp32", virtual_ranks=None if replicas == 1 else replicas, **settings)
    choice = Choice(Target("cpu"), "cpu", (Device("cpu", 0, threads=1),), "a test")
    request = Request(target=Target("cpu"), settings=chosen)
    plan = make_plan(choice, backend.caps, request, Decision("keras", "a test"))
    rt = CpuKerasRuntime(Job(World(), plan, chosen, backend.caps, run_dir, "train.py"))
    rt.start()
    return rt


def rows(count: int = ROWS) -> tuple[Any, Any]:
    """(x, y): shapes (count, 6) and (count, 1), float32."""
    random = numpy.random.default_rng(0)
    x = random.normal(size=(count, 6)).astype("float32")
    return x, (2 * x[:, :1] + x[:, 1:2] ** 2).astype("float32")


def dataset(count: int = ROWS, batch: int = BATCH) -> Any:
    return untuned(tf.data.Dataset.from_tensor_slices(rows(count)).shuffle(count).batch(batch))


def untuned(data: Any) -> Any:
    """A dataset without tf.data's tuner, for whose thread TensorFlow 2.21 now and then waits a minute when an iterator goes."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def network() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.Dense(1),
        ]
    )


def compiled(rt: SharedKerasRuntime, loss: Any = "mse", jit: bool = False, **options: Any) -> Any:
    """A prepared model, compiled with an optimizer that clips: the order of clipping and adding up matters.

    `jit`: with XLA where the runtime wants it, which takes seconds for each shape of a batch.
    """
    with rt.scope():
        model = network()
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        model.compile(optimizer, loss, metrics=["mae"], **{**rt.compile_options(), **({} if jit else NO_JIT), **options})
    return rt.prepare(model)


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses(run_dir: Path) -> list[float]:
    return [line["loss"] for line in lines(run_dir)]
