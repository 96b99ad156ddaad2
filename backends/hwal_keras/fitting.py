"""model.fit and model.evaluate as they run here: over rt.feed, step by step in the run's metrics, checkpoints and signals.

Keras's own fit hands out nothing but running means, cannot begin in the midst of an epoch, and does not run over several
machines (Keras 3.15 under MultiWorkerMirroredStrategy). The model, what it was compiled with, and callbacks are Keras's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from hwal.errors import ScriptError
from hwal_keras.data import apart, check_classes, feed_of
from hwal_keras.denominators import make_whole
from hwal_keras.feed import ENDS, Feed, empty
from hwal_keras.history import behind
from hwal_keras.predicting import Predictor
from hwal_keras.step import by_xla, in_graph, test_step
from hwal_keras.training import Step, Stopped, Training

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime


def take_over(rt: SharedKerasRuntime, model: Any) -> None:
    """Has a prepared model's fit, evaluate and predict run by the Runtime, which is told of its compile from here on."""
    fitted = Fitted(rt, model)
    model.fit, model.evaluate, model.compile = fitted.fit, fitted.evaluate, fitted.compile
    model.predict = fitted.predictor.predict


class Fitted:
    """A prepared model's compile, fit and evaluate. Their arguments are Keras's."""

    def __init__(self, rt: SharedKerasRuntime, model: Any) -> None:
        self._rt = rt
        self._model = model
        self._tests: Any = None
        self._steps: dict[Any, Step] = {}
        self.predictor = Predictor(rt, model)

    def compile(self, *args: Any, **options: Any) -> None:
        """Keras's own, for a model that is compiled after rt.prepare, or anew between two calls of fit."""
        model = self._model
        before = getattr(model, "optimizer", None)
        type(model).compile(model, *args, **options)
        self._tests = None  # which is a graph of the loss and metrics that were
        self._steps.clear()
        self.predictor.forget()
        self._rt.compiled(model, before)

    # training

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Trains up to `epochs` of this call, from where the run stands; returns Keras's History.

        Raises ScriptError for data that a prepared model does not take, and Preempted after a signal.
        """
        rt, model = self._rt, self._model
        if rt.progress.in_epochs:
            raise ScriptError(
                "model.fit within rt.epochs()",
                why="both count the run's epochs: fit would end the loop after its first",
                hint="model.fit(…, epochs=N), without that loop or in a plain one: for number in range(N)",
            )
        if validation_split:
            raise ScriptError(
                "model.fit(validation_split=…) is not for a prepared model",
                hint="split the data, and give validation_data=rt.feed(…, train=False)",
            )
        feed = feed_of(rt, x, y, batch_size, shuffle, True, sample_weight)
        held_out = None
        if validation_data is not None:
            a, b, weights = apart(validation_data)
            held_out = feed_of(rt, a, b, validation_batch_size or batch_size, False, False, weights)
            _has_end(held_out, validation_steps, "model.fit", "validation_steps")
        _has_end(feed, steps_per_epoch, "model.fit", "steps_per_epoch")
        if class_weight:
            check_classes(feed.element)
        self.build(feed)
        length = steps_per_epoch or feed.batches
        followers = keras.callbacks.CallbackList(
            callbacks, add_history=True, add_progbar=verbose not in ("auto", 0), verbose=verbose, epochs=epochs, steps=length,
            model=model,
        )  # fmt: skip
        follows = bool(callbacks) or verbose not in ("auto", 0)
        goes_on = steps_per_epoch is not None

        def validate(epoch: int) -> dict[str, Any]:
            if held_out is None or not _due(epoch, validation_freq):
                return {}
            return self._measure(held_out, validation_steps, followers)

        first, had = rt.fits.begin(epochs - initial_epoch, rt.progress)
        if had is not None:
            rt.say(
                f"this model.fit stays as a callback has ended it, after {had} of its {epochs - initial_epoch} epochs; "
                "with another number of them it goes on"
            )
        part = (first, rt.fits.end) if goes_on else None
        training = Training(rt, model, self._step(class_weight), feed, length, part, followers if follows else None)
        before = first - initial_epoch  # the run's epochs less those of this call
        self._epochs(training, validate, followers, before, first)
        return model.history

    def _epochs(
        self, training: Training, validate: Callable[[int], dict[str, Any]], followers: Any, before: int, first: int
    ) -> None:
        """The epochs that are left of a call of fit, which begins at the run's epoch `first`, and counts from `before`."""
        rt, model = self._rt, self._model
        model.stop_training = False
        followers.on_train_begin()
        logs = self._recall(before, first)
        for number in rt.epochs(rt.fits.end):
            epoch = number - before
            model.reset_metrics()
            followers.on_epoch_begin(epoch)
            with suppress(Stopped):
                training.epoch()
            logs = _numbers(model.get_metrics_result())
            logs |= {f"val_{name}": value for name, value in validate(epoch).items()}
            rt.log(**{name: value for name, value in logs.items() if name != "loss"})
            followers.on_epoch_end(epoch, logs)
            over = model.stop_training and number + 1 < rt.fits.end  # a last epoch may go on, where a resumed run wants more
            if over:
                self._stop(number + 1)
            rt.save()
            if over:
                break
        rt.unfinished = None
        model.optimizer.finalize_variable_values(model.trainable_variables)
        followers.on_train_end(logs)

    def _step(self, class_weight: Mapping[int, float] | None) -> Step:
        """The train step, compiled once for all calls of fit between which nothing of it has changed."""
        model, weights = self._model, class_weight or {}
        trained = tuple(map(id, model.trainable_variables))
        key = (tuple(sorted(weights.items())), trained, model.jit_compile, model.run_eagerly)
        if key not in self._steps:
            self._steps[key] = Step(self._rt, model, weights)
        return self._steps[key]

    def _recall(self, before: int, first: int) -> dict[str, Any]:
        """Has History tell the epochs of this call that a resumed run has behind it; returns the logs of the last of them."""
        history, logs = self._model.history, {}
        names = self._model.get_metrics_result()
        for number, told in behind(self._rt, first, self._rt.fits.end):
            logs = {name: value for name, value in told.items() if name.removeprefix("val_") in names}
            history.epoch.append(number - before)
            for name, value in logs.items():
                history.history.setdefault(name, []).append(value)
        return logs

    def _stop(self, end: int) -> None:
        """A callback has ended this call before that epoch."""
        self._rt.progress.leave_epoch()
        self._rt.fits.stop(end)
        self._rt.unfinished = None

    def build(self, feed: Feed) -> None:
        """Makes what the model, its metrics and its optimizer still lack, and loads a checkpoint's weights into it."""
        model = self._model
        if not model.compiled:
            raise ScriptError(
                "model.fit before model.compile", hint="model.compile(…, **rt.compile_options()) within rt.scope()"
            )
        specs = tf.nest.map_structure(lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), feed.element)
        with self._rt.strategy.scope():
            model._symbolic_build(data_batch=specs)
        if self._rt.strategy.num_replicas_in_sync > 1:
            make_whole(model)
        self._rt.built(model)

    # evaluation

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """The metrics over a dataset, as Keras's evaluate returns them: every row counts once, at any number of replicas, but
        for those that static shapes leave out, which is told."""
        feed = feed_of(self._rt, x, y, batch_size, False, False, sample_weight)
        _has_end(feed, steps, "model.evaluate", "steps")
        self.build(feed)
        followers = keras.callbacks.CallbackList(callbacks, verbose=0, model=self._model)
        logs = self._measure(feed, steps, followers)
        if return_dict:
            return logs
        values = list(logs.values())
        return values[0] if len(values) == 1 else values

    def _measure(self, feed: Feed, steps: int | None, followers: Any) -> dict[str, Any]:
        rt, model = self._rt, self._model
        if self._tests is None:
            one = by_xla(model, test_step(model, rt.strategy, rt.static_shapes))
            self._tests = in_graph(model, lambda iterator: rt.strategy.run(one, args=(next(iterator),)))
        model.reset_metrics()
        followers.on_test_begin()
        with rt.reading(feed):
            iterator = iter(feed.parts(limit=steps))
            for number in count():
                followers.on_test_batch_begin(number)
                try:
                    self._tests(iterator)
                except ENDS:
                    if number == 0:
                        raise empty("model.evaluate, or the validation_data of model.fit") from None
                    break
                rt.pulse.tick()
                followers.on_test_batch_end(number, {})
                rt.stop_if_asked()
        logs = _numbers(model.get_metrics_result())
        followers.on_test_end(logs)
        return logs


def _has_end(feed: Feed, steps: int | None, where: str, name: str) -> None:
    """Raises ScriptError for a dataset without end where nobody says how many steps to take of it, and for no step at all."""
    if steps is not None and steps < 1:
        raise ScriptError(
            f"{name}={steps} is no step at all", where=where, hint=f"{name}=1 or more, or none for the whole dataset"
        )
    if feed.batches == 0:
        raise empty(where)
    if steps is None and feed.endless:
        raise ScriptError("the dataset has no end", where=where, hint=f"{name}=N, or leave .repeat() out")


def _due(epoch: int, frequency: Any) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as plain numbers; those that are no scalars stay what they are."""
    return {name: float(value) if getattr(value, "shape", ()) == () else value for name, value in logs.items()}
