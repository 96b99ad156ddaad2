"""The interface where hardware and framework meet: Runtime, what the script holds while it trains.

Runtime has what both frameworks do; TorchRuntime and KerasRuntime add their few. Concrete classes live in the
backends' torch_runtime.py and keras_runtime.py, over hwal_torch and hwal_keras.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from hwal.env import Settings
from hwal.errors import EXIT_PREEMPTED, OutputError, Preempted, ScriptError
from hwal.record import Record
from hwal.topology import Device
from hwal.values import Caps, Plan, Process, World

if TYPE_CHECKING:  # what a Runtime holds is imported by the first one made: the command line has none, and a start-up budget
    from hwal.checkpoint import Position

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """All that a Runtime is told: who it is in the world, the plan, what the user chose, where its files go.

    `again`: the engine has started this run before, which goes on from its own newest checkpoint, if it has one.
    """

    world: World
    plan: Plan
    settings: Settings
    caps: Caps
    run_dir: Path
    script: str
    again: bool = False

    @property
    def process(self) -> Process:
        return self.plan.processes[self.world.local_rank % self.plan.local_size]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of this process, in the plan's order."""
        by_index = {device.index: device for device in self.plan.devices}
        return tuple(by_index[index] for index in self.process.devices)

    @property
    def hardware(self) -> Device:
        """The (first) device of this process."""
        return self.devices[0]


@dataclass(frozen=True)
class Memory(Record):
    """Bytes of device memory: in use now, the most so far, and what there is; None where unknown. `source` says who counted."""

    used: int | None
    peak: int | None
    total: int | None
    source: str


class Runtime(ABC):
    """What a training script holds. Use it as a context manager: `with hwal.start() as rt`.

    Attributes:
        rank, world_size, local_rank: this process among those that train together.
        is_main: rank 0, which writes the files and shows the progress.
        device: the framework's own handle of this rank's device.
        run_dir: the folder of metrics.jsonl, checkpoints/ and plan.json; the same on every rank.
        progress: where training stands; `epoch` and `steps_done` are short for the most asked of it.
        unit: what the progress display counts per second: "samples", or the name of what `backward` pairs count.
    """

    framework: ClassVar[str]
    device: Any
    _no_step: ClassVar[str] = "no batch came to one"

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rank = job.world.rank
        self.world_size = job.world.size
        self.local_rank = job.world.local_rank
        self.is_main = job.world.rank == 0
        self.run_dir = job.run_dir
        from hwal.background import Background
        from hwal.checkpoint import Checkpoints
        from hwal.preempt import StopRequest
        from hwal.progress import Progress
        from hwal.reporter import Reporter

        self.progress = Progress(job.settings.seed, job.world.size)
        self.checkpoints = Checkpoints(job.run_dir / "checkpoints", job.settings.keep, self.say)
        self.saving = Background()
        self.stop_request = StopRequest(at_once=job.world.size == 1)
        self.reporter = Reporter(job.run_dir if self.is_main else None)
        self.ended = self.stopping = False

    # start and end

    def start(self) -> None:
        """Opens the device, joins the world and proves it (WorldError). Called by hwal.start(); a subclass ends with this."""
        self.stop_request.install()

    def end(self, error: BaseException | None = None) -> None:
        """Waits for the checkpoint in the making, flushes the metrics, says on the main rank what came of the run, and leaves
        the world. Safe to call twice. Raises OutputError where that checkpoint failed, unless the script did before.
        """
        first, self.ended = not self.ended, True
        late: BaseException | None = None
        try:
            self.saving.wait()
        except BaseException as failure:
            late = failure
        self.stop_request.uninstall()  # not before: a signal while the last checkpoint is written must not cost it
        if first and isinstance(error, Preempted) and error.signal is not None:
            error.code, error.told = self._nothing_to_save(error.signal), True
        self.reporter.close(failed=isinstance(error or late, Exception | KeyboardInterrupt))
        if late is not None:
            if error is None:
                raise late
            self.say(f"the last checkpoint failed too: {late}")
        if first and (error is None or (type(error) is SystemExit and not error.code)):
            self.say(self._came_of_it())

    def _came_of_it(self) -> str:
        """What to say of a run that did not fail."""
        if (summary := self.reporter.summary()) is not None:
            return f"{summary}; see {self.run_dir}"
        if self.steps_done:
            return f"no step was left to do: {self.steps_done} were done before; see {self.run_dir}"
        return f"note: no step was done: {self._no_step}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error)

    # the loop

    @abstractmethod
    def scope(self, meta: bool = True) -> AbstractContextManager[None]:
        """Models and optimizers are built in here: seeded, so that every rank and backend starts from equal weights.

        Under --resume of a large checkpoint their parameters are empty until prepare() loads them; with `meta` false they
        are not, for a model whose constructor reads its weights.
        """

    @abstractmethod
    def prepare(self, *objects: Any) -> Any:
        """Moves or shards models, re-points optimizers, registers schedulers; restores all of them under --resume.

        Returns what it was given, in the same order: the object itself for one, a tuple for several.
        """

    def epochs(self, count: int | None = None, *, steps: int | None = None) -> Iterator[int]:
        """Epoch numbers from where the checkpoint stopped up to `count`; `steps` ends training at that global step."""
        if count is None and steps is None:
            raise ScriptError("rt.epochs() needs an end", hint="rt.epochs(3), or rt.epochs(steps=1000)")
        return self.progress.epochs(count, steps)

    @property
    def finished(self) -> bool:
        """Whether the number of steps given to epochs() has been done."""
        return self.progress.finished

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0."""
        return self.progress.epoch

    @property
    def steps_done(self) -> int:
        """Global batches done, those before a resume included."""
        return self.progress.step

    @abstractmethod
    def feed(self, data: Iterable[T], train: bool = True) -> Iterable[T]:
        """This rank's micro-batches of `data`, on its device. The batch size of `data` is the global batch, always."""

    @abstractmethod
    def mean(self, total: Any, count: Any = 1) -> float:
        """Sum of `total` over all ranks ÷ sum of `count` over all ranks. Every rank must call it."""

    def log(self, **values: Any) -> None:
        """Adds values (anything `float()` reads) to the last step's line of metrics.jsonl. Those of rank 0 are written.

        A tensor is read later, on another thread: it must not change any more.
        """
        self.reporter.add(values)

    @abstractmethod
    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        """Saves a checkpoint of this moment; returns its folder, run_dir/checkpoints/step-N unless a path is given. Every
        rank calls it.

        The folder appears, whole, some time later: training goes on while it is written. With `wait` it is there on return.
        What fails meanwhile is raised after the next step, at the next save or at the end of the run (OutputError).
        """

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def memory(self) -> Memory:
        """Memory of this rank's device."""

    # what the frameworks' runtimes share below the surface

    @property
    def unit(self) -> str:
        return self.reporter.unit

    @unit.setter
    def unit(self, name: str) -> None:
        self.reporter.unit = name

    def resume_at(self, position: Position, metrics: Mapping[str, float] | None = None) -> None:
        """Goes on where a checkpoint stopped: counters, seed, the lines of metrics.jsonl, and what was logged last."""
        if self.job.settings.seed not in (position.seed, Settings().seed):
            self.say(f"--seed {self.job.settings.seed} does not apply: the run goes on with its own, {position.seed}")
        self.progress.restore(position)
        self.reporter.resumed(position.step)
        self.reporter.latest.update(metrics or {})
        if self.is_main:
            self.checkpoints.clear_preempted(self.run_dir)

    def step_done(self, loss: Any, lr: Any, samples: int, count: Any = None) -> None:
        """Counts a finished global step and hands its record to the reporter.

        `loss`, `lr` and `count` may be device scalars; they are read later, on the reporter's thread, and must not change then.
        """
        progress = self.progress
        progress.end_step(samples)
        self.stop_request.at_once = False  # from here on there is something to lose
        self.reporter.step(progress.step, progress.epoch, loss, lr, samples, count)

    def write_plan(self, **decided: Any) -> None:
        """Leaves the plan in run_dir/plan.json, with what was still "auto" in it decided, and beside it whose run this is."""
        if self.is_main:
            from hwal.aside import write_file
            from hwal.provenance import remember

            path = self.run_dir / "plan.json"
            try:
                write_file(path, replace(self.job.plan, **decided).to_json(indent=1) + "\n")
                remember(self.run_dir, self.job.script)
            except OSError as error:
                what, hint = f"the run's folder cannot be written: {error.strerror}", "free space, or another --out"
                raise OutputError(what, where=str(path), hint=hint) from None

    def preempt(self) -> None:
        """Saves, leaves preempted.json and ends the script with exit code 75. Every rank calls it at the same step."""
        from hwal.preempt import go_on, rank_code

        if self.stopping:  # the barrier below asks again
            return
        self.stopping = True
        name = self.stop_request.name or "another rank's signal"
        if not self.steps_done:
            raise Preempted(self._nothing_to_save(name))
        folder = self.save_to_stop()
        if self.is_main:
            if wrong := self.checkpoints.mark_preempted(self.run_dir, name, self.steps_done):
                self.say(wrong)
            self.say(f"{name}: saved {folder}; {go_on(self.run_dir)}")
        self.barrier()  # mpirun kills the others when one has ended
        raise Preempted(rank_code(EXIT_PREEMPTED, self.job.world.launcher))

    def save_to_stop(self) -> Path:
        """The checkpoint of this moment, whole."""
        return self.save(wait=True)

    def _nothing_to_save(self, name: str) -> int:
        """Says what there is to go on from after a signal before the first step; returns the exit code."""
        from hwal.preempt import nothing_to_save, rank_code
        from hwal.resuming import source_of

        source = source_of(self.run_dir, self.job.settings.resume)
        code, told = nothing_to_save(name, "before a step was done", source)
        self.say(told)
        return rank_code(code, self.job.world.launcher)

    def say(self, *parts: object) -> None:
        """One line to the person at the terminal, from the main rank, above the progress bar. `parts` are as print's."""
        if self.is_main:
            self.reporter.say(" ".join(map(str, parts)))


class TorchRuntime(Runtime):
    """What a torch script holds besides: the three calls around the loss.

    Attributes:
        pad_to_multiple_of: what a collator should pad lengths to on this device; None where any length is as good.
    """

    framework = "torch"
    _no_step = "rt.step() was never called"
    pad_to_multiple_of: int | None = None

    @abstractmethod
    def feed(self, data: Iterable[T], train: bool = True, pad: Mapping[Any, int] | None = None) -> Iterator[T]:
        """The batches of a loader, on the device. `pad`: name or place in the batch -> the value by which its rows are
        lengthened to a multiple of pad_to_multiple_of, where there is one: each new shape costs a compilation there."""

    @property
    def is_ghost(self) -> bool:
        """Whether the micro-batch at hand only keeps this rank in step with others that have more rows: it changes nothing,
        and what the script counts for itself must leave it out."""
        return False

    @abstractmethod
    def autocast(self) -> AbstractContextManager[Any]:
        """Runs the forward pass in the run's precision."""

    @abstractmethod
    def backward(self, loss: Any) -> None:
        """Back-propagates one micro-batch: a mean over its rows, or a pair (sum, count). Once per micro-batch."""

    @abstractmethod
    def step(self, optimizer: Any, clip: float | None = None) -> bool:
        """At the last micro-batch of a global batch: reduce, divide, clip to norm `clip`, update, clear; True. Else False."""


class KerasRuntime(Runtime):
    """What a Keras script holds besides.

    Attributes:
        pad_to_multiple_of: what a tokenizer or collator should pad lengths to on this device; None where any length is as good.
    """

    framework = "keras"
    _no_step = "neither model.fit() nor rt.run() was given a batch to train on"
    pad_to_multiple_of: int | None = None

    @abstractmethod
    def compile_options(self) -> dict[str, Any]:
        """Keyword arguments for `model.compile` on this hardware."""

    @abstractmethod
    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        """Runs `step(batch, size, …)` on every replica, each with its rows of a batch of rt.feed, and adds up what they return.

        `size`: rows of the global batch, by which the step divides the sum of its losses.
        """
