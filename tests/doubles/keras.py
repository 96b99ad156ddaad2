"""A double of the Keras runtime: strategies with replicas, lazily built models, `fit` with callbacks, custom steps.

The framework half (Strategy, Dataset, Model …) copies the habits of TensorFlow and Keras that a runtime has to live
with: one process holds several replicas; a dataset is iterated once per epoch by `fit`; weights exist only after the
first batch; `fit` owns the loop and speaks through callbacks, whose logs carry the epoch's running mean, not the step's loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hwal.checkpoint import Manifest
from hwal.errors import CheckpointError
from hwal.runtime import KerasRuntime, Memory

Row = tuple[float, float]


# the framework


class PerReplica(tuple[Any, ...]):
    """One value for each replica."""


class Strategy:
    """MirroredStrategy: variables are built in its scope, a step runs once on every replica."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.open = False

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.open = True
        try:
            yield
        finally:
            self.open = False

    def split(self, batch: tuple[Row, ...]) -> PerReplica:
        cut = [len(batch) * k // self.replicas for k in range(self.replicas + 1)]
        return PerReplica(batch[cut[k] : cut[k + 1]] for k in range(self.replicas))

    def run(self, step: Callable[..., Any], args: tuple[Any, ...]) -> PerReplica:
        return PerReplica(step(*(arg[k] if isinstance(arg, PerReplica) else arg for arg in args)) for k in range(self.replicas))


class Dataset:
    """tf.data: iterated from the start each time."""

    def __init__(self, rows: Iterable[Row], batch_size: int) -> None:
        self.rows = tuple(rows)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[tuple[Row, ...]]:
        for at in range(0, len(self.rows), self.batch_size):
            yield self.rows[at : at + self.batch_size]


class Callback:
    def on_train_begin(self, model: Model) -> None: ...
    def on_train_batch_end(self, model: Model, logs: dict[str, float]) -> None: ...
    def on_epoch_end(self, model: Model) -> None: ...


class Model:
    """y = wx + b. Its weights do not exist before the first batch; its optimizer is what compile() was given."""

    def __init__(self) -> None:
        self.weights: dict[str, float] | None = None
        self.stop_training = False
        self.learning_rate = 0.0
        self.strategy: Strategy | None = None

    def compile(self, learning_rate: float, *, strategy: Strategy, jit: bool) -> None:
        self.learning_rate, self.strategy = learning_rate, strategy

    def build(self) -> None:
        if self.weights is None:
            self.weights = {"w": 0.0, "b": 0.0}

    def gradients(self, rows: tuple[Row, ...]) -> tuple[float, float, float, int]:
        """Sums over the rows: loss, its derivatives by w and b, and their number."""
        assert self.weights is not None
        errors = [self.weights["w"] * x + self.weights["b"] - y for x, y in rows]
        by_w = sum(2 * e * x for e, (x, _) in zip(errors, rows, strict=True))
        return sum(e * e for e in errors), by_w, sum(2 * e for e in errors), len(rows)

    def apply(self, by_w: float, by_b: float) -> None:
        assert self.weights is not None
        self.weights["w"] -= self.learning_rate * by_w
        self.weights["b"] -= self.learning_rate * by_b

    def train_step(self, batch: PerReplica) -> float:
        """One update; returns this batch's mean loss."""
        assert self.strategy is not None
        self.build()
        loss, by_w, by_b, count = map(sum, zip(*self.strategy.run(self.gradients, (batch,)), strict=True))
        self.apply(by_w / count, by_b / count)
        return loss / count

    def fit(self, data: Iterable[PerReplica], epochs: int, initial_epoch: int = 0, callbacks: Iterable[Callback] = ()) -> None:
        callbacks = list(callbacks)
        for callback in callbacks:
            callback.on_train_begin(self)
        for _ in range(initial_epoch, epochs):
            total = steps = 0.0
            for batch in data:
                total, steps = total + self.train_step(batch), steps + 1
                for callback in callbacks:
                    callback.on_train_batch_end(self, {"loss": total / steps})
                if self.stop_training:
                    return
            for callback in callbacks:
                callback.on_epoch_end(self)


# the runtime


class Feed:
    """What rt.feed returns: `fit` iterates it once per epoch; a resumed first epoch begins where it stopped."""

    def __init__(self, runtime: KerasDouble, data: Dataset, train: bool) -> None:
        self.runtime, self.data, self.train = runtime, data, train

    def __iter__(self) -> Iterator[PerReplica]:
        rt = self.runtime
        skip = (rt.progress.begin_feed() or 0) if self.train else 0
        rt.training = self.train
        if self.train:
            rt.reporter.begin()
        for number, batch in enumerate(self.data):
            if number >= skip:
                rt.batch_rows = len(batch)
                yield rt.device.split(batch)


class StepCounter(Callback):
    """What prepare() adds to every fit: counts the steps, saves and ends when a signal came."""

    def __init__(self, runtime: KerasDouble) -> None:
        self.runtime = runtime

    def on_train_begin(self, model: Model) -> None:
        self.runtime.restore_into(model)

    def on_train_batch_end(self, model: Model, logs: dict[str, float]) -> None:
        self.runtime.after_step(model)

    def on_epoch_end(self, model: Model) -> None:
        self.runtime.progress.end_epoch()


class KerasDouble(KerasRuntime):
    device: Strategy

    def start(self) -> None:
        self.device = Strategy(len(self.job.process.devices))
        self.models: list[Model] = []
        self.training = False
        self.batch_rows = 0
        self.step_loss = 0.0
        self.stop_request.install()

    @contextmanager
    def scope(self, meta: bool = True) -> Iterator[None]:
        with self.device.scope():
            yield

    def prepare(self, *objects: Any) -> Any:
        for model in objects:
            if isinstance(model, Model):
                self.models.append(model)
                self._watch(model)
        if self.job.settings.resume is not None and (found := self.checkpoints.newest(self.say)):
            self.resume_at(found[1].position)
        return objects if len(objects) > 1 else objects[0]

    def _watch(self, model: Model) -> None:
        """fit gets the step counter; train_step leaves its own loss, which fit's logs do not tell."""
        fit, train_step = model.fit, model.train_step

        def counted(data: Any, epochs: int, initial_epoch: int | None = None, callbacks: Iterable[Callback] = ()) -> None:
            begin = self.epoch if initial_epoch is None else initial_epoch
            fit(data, epochs, begin, [StepCounter(self), *callbacks])

        def noted(batch: PerReplica) -> float:
            self.step_loss = train_step(batch)
            return self.step_loss

        model.fit, model.train_step = counted, noted  # type: ignore[method-assign]

    def restore_into(self, model: Model) -> None:
        """Weights exist once the model is built, which may be long after prepare()."""
        model.build()
        if self.job.settings.resume is not None and (found := self.checkpoints.newest(self.say)):
            saved = json.loads((found[0] / "weights.json").read_text(encoding="utf-8"))
            if set(saved) != set(model.weights or {}):
                raise CheckpointError("the model's weights are not those that were saved", where=str(found[0]))
            model.weights = saved

    def after_step(self, model: Model | None) -> None:
        self.step_done(self.step_loss, self.models[0].learning_rate, self.batch_rows)
        if model is not None and self.finished:
            model.stop_training = True
        if self.stop_request:
            self.preempt()

    def feed(self, data: Any, train: bool = True) -> Any:
        return Feed(self, data, train)

    def mean(self, total: Any, count: Any = 1) -> float:
        def sums(value: Any) -> float:
            return sum(value) if isinstance(value, PerReplica) else value * self.device.replicas

        return float(sums(total) / sums(count))

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        target = self.checkpoints.path(self.steps_done) if path is None else Path(path)
        with self.checkpoints.writing(
            target, lambda files: Manifest(self.progress.position(), files, self.framework)
        ) as folder:
            (folder / "weights.json").write_text(json.dumps(self.models[0].weights), encoding="utf-8")
        return target

    def barrier(self) -> None: ...

    def memory(self) -> Memory:
        return Memory(None, None, None, "the strategy does not tell")

    def compile_options(self) -> dict[str, Any]:
        return {"strategy": self.device, "jit": False}

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Sums what each replica returns (a loss already divided by the global batch); counts a step while training."""
        results = self.device.run(step, args)
        total = sum(results)
        if self.training:
            self.step_loss = total
            self.after_step(None)
        return total
