"""The Keras Runtime that all backends share. A backend's own class adds its devices, its strategy and its memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import tensorflow as tf

from hwal.errors import CheckpointError, OutputError, ScriptError, VersionError
from hwal.launch.owner import explain
from hwal.plan.keras import BACKEND, check_backend
from hwal.resuming import Found
from hwal.runtime import Job, KerasRuntime
from hwal.seeds import mix
from hwal.values import Decision
from hwal.watch.pulse import EVALUATING, PREPARING, SAVING, TRAINING, Pulse
from hwal_keras import fitting, options, saving, trouble, workers
from hwal_keras.feed import Batch, Feed
from hwal_keras.fits import Fits
from hwal_keras.guard import Guard
from hwal_keras.optimizing import reduce_first
from hwal_keras.passes import Passes
from hwal_keras.step import loss_of, on_replicas
from hwal_keras.strategy import use_threads
from hwal_keras.watching import watch

LATE = 50  # steps after which a loss is looked at, on devices that work ahead of the host
POLICIES = {"fp32": "float32", "tf32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


class SharedKerasRuntime(KerasRuntime):
    """Everything of a Keras Runtime that does not depend on the kind of device.

    Attributes:
        strategy: TensorFlow's; `device` is the same.
        models, optimizers: what prepare was given, each in its order.
        replaced: how often a model was compiled anew with another optimizer, by the optimizer's place. awaited: places whose
            state in the checkpoint is that of an optimizer which the resumed script has not come to yet.
        static_shapes: whether every batch must have the same shape, as where each new one is compiled at length.
        jit: whether XLA compiles the train step here (compile_options), and why_no_jit, in words, where it must not.
        steps_per_execution: steps for one call from the host.
        on_host: whether reading a number waits for nothing.
        at_work: the training feed that is being read. unfinished: its dataset, by number, or that of one to be read again.
        fits: the epochs that each call of fit has.
    """

    why_no_jit = "is for one device"
    static_shapes = False
    jit = False
    steps_per_execution = 1
    on_host = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.replaced: Counter[int] = Counter()
        self.awaited: set[int] = set()
        self.strategy: Any = None
        self.guard = Guard()
        self.found: Found | None = None
        self.restored: set[int] = set()  # models, by place, whose weights have been loaded
        self._scopes = 0
        self._told: set[str] = set()
        self._functions: dict[Any, Any] = {}
        # Outside of a graph that takes seconds where there are replicas.
        self.take = tf.function(lambda iterator: next(iterator), autograph=False, reduce_retracing=True)
        self._unchecked: list[tuple[int, Any, bool]] = []  # (step, its loss, whether an update by it was left out)
        self.pulse = Pulse()
        self.at_work: Feed | None = None
        self.passes = Passes(self.progress)
        self.unfinished: int | None = None
        self._last: int | None = None
        self.fits = Fits()

    # what a kind of device adds

    @abstractmethod
    def open_strategy(self) -> Any:
        """Opens this process's devices and returns the strategy that trains on them."""

    def opening(self) -> AbstractContextManager[None]:
        """Within it TensorFlow looks for the devices for the first time."""
        return nullcontext()

    # start and end

    def start(self) -> None:
        check_backend({BACKEND: keras.config.backend()})
        options.check_version(keras.__version__)
        with self.opening():
            note = use_threads(self.job.process.threads)
            link = workers.meet(self.job, self.run_dir) if self.world_size > 1 else None
            self.strategy = self.device = self.open_strategy()
        if note is not None:
            self.say(f"note: {note}")
        if self.strategy.num_replicas_in_sync < self.world_size:
            raise VersionError(
                f"TensorFlow made {self.strategy.num_replicas_in_sync} replicas of {self.world_size} processes",
                where="rt.start",
            )
        keras.config.set_dtype_policy(POLICIES[self.job.plan.precision.value])
        tf.config.experimental.enable_tensor_float_32_execution(self.job.plan.precision.value == "tf32")
        self._seed(mix(self.progress.seed))
        self.found = saving.choose(self)
        if self.found is not None:
            self.progress.seed = self.found.manifest.position.seed
        replicas = self.strategy.num_replicas_in_sync
        name = "ddp" if replicas > 1 else "single"
        self.write_plan(strategy=Decision(name, f"{type(self.strategy).__name__}, {replicas} replica{'s' * (replicas > 1)}"))
        if replicas > 1:
            told = f"; jit_compile is off, which {self.why_no_jit}" * (not self.jit)
            self.say(f"strategy {type(self.strategy).__name__}: {replicas} replicas, a whole model on each{told}")
        self.guard.open(self.strategy)
        super().start()
        self.watchdog = watch(self, link)

    def end(self, error: BaseException | None = None) -> None:
        with self.stop_request.stays():
            try:
                if error is None:
                    self.check_losses(settle=True)
            finally:
                self.guard.close()
                try:
                    with self.pulse.during(SAVING):
                        super().end(error)
                finally:
                    self.watchdog.leave(error)
        if error is None:
            self.stop_request.pass_on()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        meant = self.stop_request.meant(error)
        told = meant if meant is not error else explain(self, self.watchdog, error) or trouble.explain(self, error)
        super().__exit__(kind, meant, trace)
        if told is not None:
            raise told.with_traceback(trace) from None

    # before the loop

    @contextmanager
    def scope(self, meta: bool = True) -> Iterator[None]:
        self._seed(mix(self.progress.seed, self._scopes))
        self._scopes += 1
        with self.strategy.scope():
            yield

    def _seed(self, seed: int) -> None:
        keras.utils.set_random_seed(seed & 0x7FFFFFFF)

    def prepare(self, *objects: Any) -> Any:
        with self.pulse.during(PREPARING):
            self._prepare(objects)
        return objects[0] if len(objects) == 1 else objects

    def _prepare(self, objects: tuple[Any, ...]) -> None:
        for thing in objects:
            if isinstance(thing, keras.Model):
                self.models.append(thing)
            elif isinstance(thing, keras.optimizers.Optimizer):
                self.optimizers.append(thing)
            else:
                raise trouble.no_part(thing)
        for thing in objects:
            if isinstance(thing, keras.Model):
                if thing.compiled:
                    self.compiled(thing)
                else:
                    self.guard.check(thing, self.strategy)
                fitting.take_over(self, thing)
            else:
                self.guard.check(thing, self.strategy)
                self._adopt(thing)
        if self.found is not None and self.steps_done == 0:
            self.passes.resume(self.found.manifest.about.get("passes", ()))
            self.fits.resume(self.found.manifest.about.get("fits", {}))
            self.resume_at(self.found.manifest.position, self.found.manifest.metrics)
            self.say(saving.told(self))
        self._build_optimizers()
        for model in self.models:
            if model.built:
                self.built(model)

    def _build_optimizers(self) -> None:
        """Those of custom loops have their variables before the first step: a checkpoint is loaded into them.

        Raises ScriptError where nobody can know which variables are whose.
        """
        free = [one for one in self.optimizers if not any(one is getattr(model, "optimizer", None) for model in self.models)]
        waiting = [one for one in free if not one.built]
        if not waiting:
            return
        if len(self.optimizers) > 1 or not all(model.built for model in self.models):
            raise ScriptError(
                f"rt.prepare() was given an optimizer ({waiting[0].name}) that has no variables yet",
                why="which variables it is for, or what they are, is not known",
                hint="within rt.scope(): model.build(shape); optimizer.build(model.trainable_variables)",
            )
        with self.strategy.scope():
            waiting[0].build([variable for model in self.models for variable in model.trainable_variables])

    def built(self, model: Any) -> None:
        """A model has its weights, and its optimizer can have its own: those of a checkpoint are loaded into them, once."""
        number = next(place for place, known in enumerate(self.models) if known is model)
        if number in self.restored:
            return
        self.restored.add(number)
        with self.strategy.scope():
            if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        if self.found is not None:
            saving.load(self, number, model)

    def compiled(self, model: Any, before: Any = None) -> None:
        """A model is compiled: its optimizer is the run's, in the place of the one `before`, which no model has any more."""
        self.guard.check(model, self.strategy)
        options.check_model(self, model)
        free = not any(before is getattr(known, "optimizer", None) for known in self.models)
        self._adopt(model.optimizer, next((n for n, one in enumerate(self.optimizers) if free and one is before), None))
        number = next(place for place, known in enumerate(self.models) if known is model)
        if self.found is not None and number in self.restored:
            with self.strategy.scope():
                model.optimizer.build(model.trainable_variables)
                saving.load_optimizers(self, number)

    def _adopt(self, optimizer: Any, place: int | None = None) -> None:
        reduce_first(optimizer, self.strategy)
        if any(optimizer is known for known in self.optimizers):
            return
        if place is None:
            self.optimizers.append(optimizer)
        else:
            self.optimizers[place] = optimizer
            self.replaced[place] += 1

    def check_loaded(self) -> None:
        """Raises CheckpointError where a step would be done without the state that its optimizer had."""
        if self.awaited:
            raise CheckpointError(
                "the run that was saved had compiled a model anew before this step, and this one has not",
                where="model.fit",
                hint="the script that was saved, or start anew without --resume",
            )

    def compile_options(self) -> dict[str, Any]:
        return {"jit_compile": self.jit, "steps_per_execution": self.steps_per_execution}

    # the loop

    def epochs(self, count: int | None = None, *, steps: int | None = None) -> Iterator[int]:
        self.passes.loop_begins()
        return super().epochs(count, steps=steps)

    def feed(self, data: Any, train: bool = True) -> Any:
        return Feed(self, data, train)

    @contextmanager
    def reading(self, feed: Feed, length: int | None = None) -> Iterator[int | None]:
        """A feed is read from here on: yields how many batches of it are done already, None where nothing is left to do.

        `length`: global batches of an epoch, where it is not the feed that says so.
        """
        if not feed.train:
            with self.pulse.during(EVALUATING):
                yield 0
            self.stop_if_asked()
            return
        skip = self.progress.begin_feed()
        if skip is None:
            yield None
            return
        self.reporter.total_steps = self.progress.steps_in_all(length or feed.batches)
        self.reporter.begin()
        self.pulse.source = feed.data
        self.at_work, self.unfinished = feed, feed.number
        try:
            with self.pulse.during(TRAINING):
                yield skip
        finally:
            self.at_work = None
        self._last, self.unfinished = feed.number, None
        self.progress.end_feed()
        self.stop_if_asked()

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Runs `step(batch, size, …)` on every replica and returns what they return, added up.

        The first argument is a batch of rt.feed; a replica gets its rows of it, and `size`, the rows of the whole global
        batch as a float32: a loss that is the sum over the rows divided by `size` has gradients that add up to those of the
        global batch. In a training feed that is a step of the run; its loss is what `step` returns, the first of several, or
        the one named "loss". Raises ScriptError for what cannot be added up.
        """
        if not args or not isinstance(args[0], Batch):
            raise ScriptError("rt.run(step, batch) takes a batch of rt.feed()", hint="for batch in rt.feed(dataset): …")
        batch, rest = args[0], args[1:]
        optimizer = self.optimizers[0] if self.optimizers and batch.trains else None
        key = (step, None if optimizer is None else id(optimizer))
        if key not in self._functions:
            self._functions[key] = on_replicas(step, self.strategy, self.static_shapes, optimizer)
        result, rate = self._functions[key](batch.parts, rest)
        if self.at_work is not None and batch.trains:
            self.after_step(loss_of(result), rate, batch.size)
        return result

    def after_step(self, loss: Any, lr: Any, size: int, last: bool = True, held: bool = False) -> None:
        """A step is done: counts it, looks at its loss, and ends the run where it was asked to; after the last of several
        that the device did for one call. `held`: with a loss that is no number its update was left out."""
        if self.on_host:
            loss, lr = (None if value is None else float(value) for value in (loss, lr))
        self.step_done(loss, lr, size)
        if loss is not None:
            self._unchecked.append((self.steps_done, loss, held))
            self.check_losses()
        if last:
            self.stop_if_asked()

    def check_losses(self, settle: bool = False) -> None:
        """Looks at the losses that are due. Raises ScriptError for one that is no number."""
        late = 0 if settle or self.on_host else LATE
        while len(self._unchecked) > late:
            step, loss, held = self._unchecked.pop(0)
            if not math.isfinite(number := float(loss)):
                self._unchecked.clear()
                raise trouble.not_finite(self, step, number, held)

    def stop_if_asked(self) -> None:
        """Saves and ends where a signal came, to any of the processes: they agree, and all of them call this together.

        Raises OutputError, on all of them, where the checkpoint in the making has failed.
        """
        asked, failed = self.agree(self.stop_request.name is not None, self.saving.failed)
        if failed:
            try:
                self.saving.wait()
                raise OutputError("a checkpoint could not be written", why="rank 0 says so")
            except OutputError as error:
                if not asked:
                    raise
                self.say(f"{error.what}; once more, before the run ends")
        if asked:
            self.preempt()

    def preempt(self) -> None:
        if self.progress.reopen():
            self.unfinished = self._last
        super().preempt()

    def agree(self, *words: bool) -> tuple[bool, ...]:
        """Of each word whether any process says so. Every process calls it."""
        if self.world_size == 1:
            return words
        self.pulse.tick()
        return tuple(number > 0 for number in workers.add(self.strategy, *map(float, words)))

    def mean(self, total: Any, count: Any = 1) -> float:
        self.pulse.tick()
        total, count = float(total), float(count)
        if self.world_size > 1:
            total, count = workers.add(self.strategy, total, count)
        return float(total / count) if count else math.nan

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        with self.pulse.during(SAVING):
            self.check_losses(settle=True)  # weights that are no numbers are not saved
            return saving.save(self, None if path is None else Path(path), wait)

    def barrier(self) -> None:
        self.agree(False)

    # words

    def say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.say(text)
