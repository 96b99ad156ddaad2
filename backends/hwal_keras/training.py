"""The steps of model.fit: compiled once for many calls, and done epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hwal_keras.feed import ENDS, Feed, empty
from hwal_keras.optimizing import rate_of
from hwal_keras.step import by_xla, holds_back, in_graph, train_step

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime


class Stopped(Exception):
    """A callback ends training in the midst of an epoch, whose feed is left where it stands."""


class Step:
    """A model's train step, compiled, over all replicas: a call of one, and one of several.

    Attributes:
        tells: whether a step tells its loss. holds: whether it leaves its update out where that is no number.
    """

    def __init__(self, rt: SharedKerasRuntime, model: Any, class_weight: Mapping[int, float]) -> None:
        weights = None
        if class_weight:
            weights = tf.constant([float(class_weight.get(number, 1.0)) for number in range(max(class_weight) + 1)])
        self.tells = True
        self.holds = holds_back(model, rt.strategy, rt.on_host)
        update = train_step(model, rt.strategy, rt.static_shapes, weights, self.holds)
        results = rt.strategy.experimental_local_results

        def replica(parts: Any) -> Any:
            rate = rate_of(model.optimizer)
            return *update(parts), rate

        one = by_xla(model, replica)

        def step(iterator: Any) -> Any:
            loss, size, rate = rt.strategy.run(one, args=(next(iterator),))
            self.tells = loss is not None  # known once this is traced
            return tf.cast(results(loss)[0], tf.float32) if self.tells else 0.0, results(size)[0], results(rate)[0]

        def steps(iterator: Any, number: Any) -> Any:
            losses, sizes, rates = (tf.TensorArray(kind, number) for kind in (tf.float32, tf.int32, tf.float32))
            for at in tf.range(number):
                loss, size, rate = step(iterator)
                losses, sizes, rates = losses.write(at, loss), sizes.write(at, size), rates.write(at, rate)
            return losses.stack(), sizes.stack(), rates.stack()

        self._one, self._several = in_graph(model, step), in_graph(model, steps)

    def __call__(self, iterator: Any, number: int) -> list[tuple[Any, Any, Any]]:
        """Does so many steps: (loss, rows, learning rate) of each."""
        if number == 1:
            return [self._one(iterator)]
        return list(zip(*self._several(iterator, tf.constant(number)), strict=True))


class Training:
    """The steps of a call of fit."""

    def __init__(
        self,
        rt: SharedKerasRuntime,
        model: Any,
        step: Step,
        feed: Feed,
        count: int | None,
        goes_on: tuple[int, int] | None,
        followers: Any,
    ) -> None:
        """`count`: global batches of an epoch, None where nobody knows. `goes_on`: where each epoch's data begin where those
        of the one before end, the first of this call, among the run's epochs, and their end; else None. `followers`: None
        without callbacks."""
        self._rt, self._model, self._step, self._feed, self._count = rt, model, step, feed, count
        self._goes_on, self._followers = goes_on, followers
        self._iterator: Any = None

    def epoch(self) -> None:
        """Does the steps that are left of the epoch. Raises Stopped where a callback ends training before they are done."""
        rt, model, step, followers = self._rt, self._model, self._step, self._followers
        with rt.reading(self._feed, self._count) as skip:
            if skip is None:
                return
            if self._count is not None and skip >= self._count:
                if self._goes_on is None:
                    rt.passes.skip(self._feed.number)
                return
            rt.check_loaded()
            iterator, at = self._begin(skip), skip
            while self._count is None or at < self._count:
                left = 1 if self._count is None else self._count - at
                number = min(int(model.steps_per_execution), left)
                if followers is not None:
                    followers.on_train_batch_begin(at)
                try:
                    done = step(iterator, number)
                except ENDS:
                    if at == 0:
                        raise empty("model.fit") from None
                    self._ran_out(at)
                    return
                for place, (loss, size, rate) in enumerate(done, 1):
                    rt.after_step(loss if step.tells else None, rate, int(size), last=place == number, held=step.holds)
                at += number
                if self._goes_on is not None:
                    rt.passes.drawn(self._feed.number, self._behind(at))
                if followers is not None:
                    followers.on_train_batch_end(at - 1, model.get_metrics_result())
                if model.stop_training:
                    raise Stopped

    def _begin(self, skip: int) -> Any:
        if self._goes_on is None:
            return iter(self._feed.parts(skip))
        if self._iterator is None:
            first, end = self._goes_on
            self._iterator = iter(self._feed.parts(self._behind(skip), (end - first) * (self._count or 0), first))
        return self._iterator

    def _behind(self, at: int) -> int:
        """Batches of this call of fit up to that one of the epoch in progress."""
        first = 0 if self._goes_on is None else self._goes_on[0]
        return (self._rt.progress.epoch - first) * (self._count or 0) + at

    def _ran_out(self, at: int) -> None:
        if self._count is not None and at < self._count:
            self._rt.say_once(f"the dataset gave {at} batches of the {self._count} that an epoch should have")
