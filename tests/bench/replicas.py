"""Keras: one curve at 1, 2, 4 and 8 replicas, beside that of Keras's own fit; and what XLA makes of a step.

    python tests/bench/replicas.py [curve] [xla]

Differences are the largest of 20 steps' losses against one replica's, relative. Keras's own fit tells running means only: its
losses are read by a callback, from a metric that is reset before each batch. The job clips gradients, has regularization and a
ragged end. `xla`: the median step of a stack of dense layers on one device, without XLA and with it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HWAL_PROGRESS", "off")

import keras
import numpy
import tensorflow as tf

from tests.keras import jobs

REPLICAS = (1, 2, 4, 8)
STEPS = 20
WIDTH, DEPTH, ROWS = 256, 8, 64  # of the layers that XLA compiles


class Losses(keras.callbacks.Callback):
    """Each batch's own loss, out of Keras's own fit."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.values.append(float(logs["loss"]))


def by_hwal(replicas: int) -> list[float]:
    folder = Path(tempfile.mkdtemp())
    with jobs.start(folder, replicas) as rt:
        data = jobs.dataset()
        jobs.compiled(rt).fit(rt.feed(data), epochs=STEPS // 3 + 1)
    return jobs.losses(folder)[:STEPS]


def by_keras(replicas: int) -> list[float]:
    keras.utils.set_random_seed(1)
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:replicas]]
    strategy = tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())
    # Not shuffled: under a strategy Keras reads a batch before the first epoch, and would have another order from there on.
    data = tf.data.Dataset.from_tensor_slices(jobs.rows()).batch(jobs.BATCH)
    with strategy.scope():
        model = jobs.network()
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse", jit_compile=False)
    losses = Losses()
    model.fit(data, epochs=STEPS // 3 + 1, callbacks=[losses], verbose=0)
    return losses.values[:STEPS]


def curve() -> None:
    """Prints the largest difference at each number of replicas."""
    for name, train in (("hwal", by_hwal), ("Keras's own fit", by_keras)):
        alone = train(1)
        for replicas in REPLICAS[1:]:
            there = train(replicas)
            worst = max(abs(a - b) / abs(b) for a, b in zip(there, alone, strict=True))
            print(f"{name}, {replicas} replicas: {worst:.0e} of the loss, over {STEPS} steps", flush=True)


def xla() -> None:
    """Prints the median step without XLA and with it."""
    x = numpy.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    times = {}
    for jit in (False, True):
        folder = Path(tempfile.mkdtemp())
        with jobs.start(folder) as rt:
            with rt.scope():
                layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(DEPTH)]
                model = keras.Sequential([keras.Input((WIDTH,)), *layers])
                model.compile("adam", "mse", **{**rt.compile_options(), "jit_compile": jit})
            data = tf.data.Dataset.from_tensors((x, x)).repeat(300)
            begun = perf_counter()
            rt.prepare(model).fit(rt.feed(data), epochs=1)
            print(f"XLA {'on' if jit else 'off'}: {perf_counter() - begun:.1f} s in all", flush=True)
        times[jit] = median(line["seconds"] for line in jobs.lines(folder)[20:])
    off, on = times[False], times[True]
    print(f"XLA off {off * 1e3:.2f} ms a step, on {on * 1e3:.2f} ms: {off / on:.2f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["curve", "xla"], help="curve, xla (default: both)")
    args = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * max(REPLICAS))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    for part in args.parts:
        {"curve": curve, "xla": xla}[part]()


if __name__ == "__main__":
    main()
