"""The torch Runtime that all backends share. A backend's own class adds its device, its memory and what only it has."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

from hwal.errors import ScriptError
from hwal.micro_batch import AUTO
from hwal.runtime import Job, TorchRuntime
from hwal.values import Decision
from hwal.watch.pulse import DATA, EVALUATING, PREPARING, SAVING, SCRIPT, TRAINING, Pulse
from hwal_torch import loading, oom, optim, preparing, saving, world
from hwal_torch.buffers import Buffers
from hwal_torch.channel import Channel
from hwal_torch.decide import before_models, make_strategy
from hwal_torch.feed import read
from hwal_torch.gradients import Gradients
from hwal_torch.loading import Found
from hwal_torch.meta import LARGE, Empties
from hwal_torch.nonfinite import NotFinite
from hwal_torch.precision import Precision
from hwal_torch.reading import Reading, length
from hwal_torch.searching import Search
from hwal_torch.seeding import HostRandom, mix, seed_host
from hwal_torch.stopping import Ending
from hwal_torch.trouble import never_stepped, other_batch
from hwal_torch.units import Cut, Unit
from hwal_torch.watching import explain, watch

T = TypeVar("T")


class SharedTorchRuntime(TorchRuntime):
    """Everything of a torch Runtime that does not depend on the kind of device.

    Attributes:
        models, optimizers, schedulers: what prepare was given, each in its order.
        held: of each model, the names of the tensors that its modules hold besides their state.
        global_batch: rows of a global batch, as the last training feed had it; None before, and where the data set decides.
        batches: how many of them that feed had; None before, and where nobody knows.
        decided: what of the plan prepare decided. search: of the micro-batch, under auto.
        fused_optimizers: whether Adam and AdamW are faster here in their fused kernel.
    """

    device: torch.device
    fused_optimizers = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self._scopes = 0
        self.buffers = Buffers()
        self.host_random = HostRandom()
        self.channel = Channel(self.rank, self.world_size)
        self.empties = Empties()
        self.held: list[frozenset[str]] = []
        self.global_batch: int | None = None
        self.batches: int | None = None
        self._told: set[str] = set()
        self._unit: Unit | None = None
        self._left: Unit | None = None  # the forward in which the script left a feed
        self.decided: dict[str, Any] = {}
        self.search = Search(self) if job.plan.micro_batch == AUTO else None
        self.not_finite = NotFinite(self)
        self.pulse = Pulse()
        self.ending = Ending(self)

    # what a kind of device adds

    @abstractmethod
    def open_device(self) -> torch.device:
        """Opens this rank's device and returns torch's handle of it."""

    def seed_device(self, seed: int) -> None:
        """Seeds the generators of the device itself; those of the host are seeded apart."""

    def make_deterministic(self) -> str:
        """Has every operation give the same bits each time it runs; returns how, in words. A device adds what it needs."""
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)  # a sum over several threads is another sum for each number of them
        return "1 thread a process, and no operation whose result may vary"

    def to_device(self, batch: Any) -> Any:
        """A batch with its tensors on the device; containers and other leaves stay as they are."""
        return tree_map(lambda leaf: leaf.to(self.device, non_blocking=True) if hasattr(leaf, "to") else leaf, batch)

    # start and end

    def start(self) -> None:
        settings, plan = self.job.settings, self.job.plan
        threads = self.job.process.threads
        if threads is not None and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self.device = self.open_device()
        self._on_host = self.device.type == "cpu"
        if settings.deterministic:
            self.say(f"deterministic: {self.make_deterministic()}")
        self.precision = Precision(plan.precision.value, self.device.type)
        if self.world_size > 1:
            collectives = self.job.caps.collectives
            assert collectives is not None, "make_plan refuses several processes without collectives"
            self.ending.store = world.join(self.job.world, collectives, self.device, settings.start_timeout)
            _ = self.channel.group  # made by all ranks now: rank 0 may be the only one to save
        self.take_strategy(before_models(self.job))
        parts = settings.virtual_ranks if settings.deterministic else None
        self.gradients = Gradients(self.device, self.world_size, self.precision.scaler, parts)
        self.backward = self.gradients.backward  # type: ignore[method-assign]  # what a step calls, without a detour
        self.autocast = self.precision.autocast  # type: ignore[method-assign]
        super().start()
        self.watchdog = watch(self, self.ending.store)

    def take_strategy(self, decision: Decision) -> None:
        """Goes on by a strategy, and cuts batches as it needs them."""
        settings = self.job.settings
        self.strategy_decision = decision
        self.strategy = make_strategy(decision.value, self.job, self.device)
        micro_batch = self.job.plan.micro_batch if isinstance(self.job.plan.micro_batch, int) else None
        self.cut = Cut(self.rank, self.world_size, micro_batch, settings.virtual_ranks, self.strategy.equal)

    def end(self, error: BaseException | None = None) -> None:
        try:
            with self.pulse.during(SAVING):
                super().end(error)
        finally:
            if (told := self.not_finite.summary()) is not None:
                self.say(told)
            self.watchdog.leave(error)
            self.strategy.leave()
            self.channel.leave()
            world.leave()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        told = explain(self, error) or oom.explain(self, error) or self.strategy.explain(error)
        super().__exit__(kind, error, trace)
        if told is not None:
            raise told.with_traceback(trace) from None  # the script's line is found there

    # before the loop

    @contextmanager
    def scope(self, meta: bool = True) -> Iterator[None]:
        found = self.found
        empty = meta and found is not None and found.weights_bytes >= LARGE
        seed = mix(self.progress.seed, self._scopes)
        seed_host(seed)
        self.seed_device(seed)
        self._scopes += 1
        with torch.device("cpu"), self.empties.building() if empty else nullcontext():
            yield
        # Weights that stay empty draw nothing: what the script draws from here on does not depend on it.
        seed_host(mix(self.progress.seed, 3, self._scopes))

    @cached_property
    def found(self) -> Found | None:
        """The checkpoint that the run goes on from, and with its seed; chosen when it is first asked for, by all ranks."""
        with self.pulse.during(PREPARING):
            found = loading.choose(self)
        if found is not None:
            self.progress.seed = found.manifest.position.seed
        return found

    def prepare(self, *objects: Any) -> Any:
        with self.pulse.during(PREPARING):
            preparing.prepare(self, objects)
        if self.found is not None:
            self.ending.has_saved(self.found.folder)
        return objects[0] if len(objects) == 1 else objects

    def place(self, model: nn.Module) -> None:
        """Moves a model to the device, in place."""
        model.to(self.device)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Name (as optim.names_of gives it) -> parameter, of all prepared models."""
        names = optim.names_of(self.models)
        return {names[id(p)]: p for model in self.models for p in model.parameters()}

    # the loop

    def feed(self, data: Iterable[T], train: bool = True) -> Iterator[T]:
        return self._train(data) if train else self._evaluate(data)

    def _reading(self, skip: int | None) -> Reading:
        """How to read a training feed of which `skip` global batches are done; None for an evaluation."""
        at = self.progress
        train = skip is not None
        return Reading(
            cut=self.cut,
            seed=mix(at.seed, at.epoch, at.feed) if train else mix(at.seed),
            train=train,
            skip=skip or 0,
            global_batch=self.job.settings.global_batch if train else None,
            pin_memory=self.job.caps.pinned_memory,
        )

    def _train(self, data: Any) -> Iterator[Any]:
        at = self.progress
        skip = at.begin_feed()
        if skip is None or self.finished:
            return
        if self.ending.agreed():
            self.preempt()
        if self.job.settings.global_batch is not None:
            size = getattr(data, "batch_size", None)
            self.say_once(f"--global-batch {self.job.settings.global_batch} in place of the loader's {size}")
        batches = length(data, self.job.settings.global_batch)
        self._check_batch(data, skip, batches)
        self.reporter.total_steps = at.steps_in_all(batches)
        self.host_random.rest(mix(at.seed, 2, self.rank, at.epoch, at.feed))
        self._seed_step()
        self.reporter.begin()
        if self.search is not None:
            self.search.begin(data)
        self.pulse.source, self.pulse.phase = data, DATA
        try:
            yield from self._micro_batches(data, self._reading(skip))
            while self.search is not None and self.search.grown():
                yield from self._micro_batches(data, self._reading(at.steps_in_feed))
        finally:
            self._left, self._unit = self._unit, None
            self.pulse.phase = SCRIPT
            if self.gradients.waiting:  # the script left the loop within a global batch
                self.gradients.waiting = False
                for optimizer in self.optimizers:
                    optimizer.zero_grad(set_to_none=True)
        at.end_feed()
        self.ending.turn()

    def _check_batch(self, data: Any, skip: int, batches: int | None) -> None:
        """A pass that stopped within is skipped by global batches: they must be those that were trained on."""
        size = self.job.settings.global_batch or getattr(data, "batch_size", None)
        before, self.global_batch = self.global_batch, size
        before_all, self.batches = self.batches, batches
        if self.gradients.count is None and before and size and before != size:  # a run that was just resumed
            self.say(f"the global batch is {size} now, {before} when the checkpoint was saved: the curve goes on as another")
        elif self.gradients.count is None and before_all and batches and before_all != batches:
            self.say(f"a pass over the data has {batches} batches now, {before_all} when the checkpoint was saved")
        done = self.progress.samples_in_feed
        if skip and size and not (skip - 1) * size < done <= skip * size:
            raise other_batch(skip, done, size)

    def _micro_batches(self, data: Any, reading: Reading) -> Iterator[Any]:
        gradients, at, pulse = self.gradients, self.progress, self.pulse
        for unit, batch in read(data, reading, self.say_once, pulse.tick):
            if unit.part is not None:
                self._seed_part(unit.part)
            self.strategy.sync(unit)
            gradients.open(unit, self.strategy)
            self._unit = unit
            pulse.count += 1
            pulse.phase = TRAINING
            yield batch if self._on_host else self.to_device(batch)
            pulse.phase = DATA
            self._unit = None
            if unit.last:
                if gradients.waiting:
                    raise never_stepped()
                if left := gradients.close(self.optimizers):
                    name = type(left[0]).__name__
                    self.say_once(f"{name} is not stepped in every global batch: it learns nothing of the others")
                if gradients.stop:
                    self.preempt()
                if at.step & (at.step - 1) == 0:
                    self.host_random.look()
                self._seed_step()
                if at.finished or (self.search is not None and self.search.step()):
                    break

    def _seed_step(self) -> None:
        """What main-process data sets and forwards draw in the next step is a function of (seed, step, rank)."""
        if self.host_random.drawn:
            seed_host(mix(self.progress.seed, 0, self.rank, self.progress.step))
        if not self._on_host:
            self.seed_device(mix(self.progress.seed, 0, self.rank, self.progress.step))

    def _seed_part(self, part: int) -> None:
        """What the forward of a virtual rank draws is a function of (seed, step, part), on whatever rank it runs."""
        seed = mix(self.progress.seed, 1, part, self.progress.step)
        seed_host(seed)
        self.seed_device(seed)

    def _evaluate(self, data: Any) -> Iterator[Any]:
        unit, training, pulse = self._unit, self.strategy.training, self.pulse
        phase, source = pulse.phase, pulse.source
        self._unit, self.strategy.training = None, False
        vote = self.ending.vote()
        pulse.source, pulse.phase = data, DATA
        try:
            for rows, batch in read(data, self._reading(None), self.say_once):
                if self.ending.agreed() if vote is None else vote.ends():
                    self.preempt()
                pulse.count += 1
                pulse.phase, self._left = EVALUATING, rows
                yield batch if self._on_host else self.to_device(batch)
                pulse.phase = DATA
        finally:
            if pulse.phase != EVALUATING:  # it was read to its end
                self._left = None
            if vote is not None:
                vote.leave()
            pulse.source, pulse.phase = source, phase
            self._unit, self.strategy.training = unit, training
            self.strategy.rest()

    @property
    def at_work(self) -> Unit | None:
        """The forward that is at work; where the script has just left a feed, the one in which it did."""
        return self._unit or self._left

    @property
    def is_ghost(self) -> bool:
        return self._unit is not None and not self._unit.weight

    def autocast(self) -> AbstractContextManager[Any]:
        return self.precision.autocast()

    def backward(self, loss: Any) -> None:
        self.gradients.backward(loss)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> bool:
        unit = self._unit
        if unit is None:
            raise ScriptError("rt.step() outside of a training feed", hint="for batch in rt.feed(loader): …")
        if not unit.last:
            return False
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ScriptError(
                f"rt.step() takes one optimizer, not a {type(optimizer).__name__}", hint="rt.step(one); rt.step(other)"
            )
        gradients = self.gradients
        first = gradients.waiting  # a second optimizer steps on the same gradients, which are reduced already
        if first:
            gradients.reduce(self.stop_request.name is not None or self.saving.failed, self.strategy)
        elif not gradients.went_back:
            raise ScriptError("rt.step() before rt.backward()", hint="rt.backward(loss), then rt.step(optimizer)")
        gradients.stepped.append(optimizer)
        lr = optimizer.param_groups[0]["lr"]
        loss = float(gradients.loss)  # free where the host computes; a device that works ahead of it must look less often
        if first:
            self.step_done(loss, lr, unit.total, gradients.count)
        if self.world_size > 1:
            self.strategy.check(optimizer)
            if first:
                self.buffers.share()
        if math.isfinite(loss):
            gradients.apply(optimizer, clip, self.strategy)
        else:
            self.not_finite.meet(loss, optimizer)
        return True

    def mean(self, total: Any, count: Any = 1) -> float:
        asked = float(self.stop_request.name is not None)
        self.pulse.count += 1
        told = torch.tensor([float(total), float(count), asked], dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(told)
        if told[2] and self._unit is None:  # within a step the step decides
            self.preempt()
        return float(told[0] / told[1])

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        with self.pulse.during(SAVING):
            folder = saving.save(self, None if path is None else Path(path), wait)
        self.ending.has_saved(folder)
        return folder

    def barrier(self) -> None:
        self.pulse.count += 1
        if self.ending.agreed() and self._unit is None:
            self.preempt()

    def preempt(self) -> None:
        self.ending.rewind()
        super().preempt()

    def save_to_stop(self) -> Path:
        return self.ending.saved() or super().save_to_stop()

    # words

    def say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.say(text)
