"""The torch Runtime that all backends share. A backend's own class adds its device, its memory and what only it has."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
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
from hwal.launch.owner import explain
from hwal.micro_batch import AUTO
from hwal.resuming import Found
from hwal.runtime import Job, TorchRuntime
from hwal.values import Decision
from hwal.watch.pulse import PREPARING, SAVING, Pulse
from hwal_torch import loading, oom, optim, preparing, saving, world
from hwal_torch.blocks import Blocks
from hwal_torch.buffers import Buffers
from hwal_torch.channel import Channel
from hwal_torch.collectives import Collectives
from hwal_torch.compiling import compile_blocks, no_room
from hwal_torch.decide import before_models, for_models, make_strategy
from hwal_torch.gradients import Gradients
from hwal_torch.loop import Loop
from hwal_torch.meta import LARGE, Empties
from hwal_torch.nonfinite import NotFinite
from hwal_torch.padding import pad as padded
from hwal_torch.precision import Precision
from hwal_torch.recompute import recompute_blocks
from hwal_torch.searching import Search
from hwal_torch.seeding import HostRandom, mix, seed_host
from hwal_torch.shards import local
from hwal_torch.stopping import Ending
from hwal_torch.strategy import Strategy
from hwal_torch.units import Cut
from hwal_torch.watching import watch

T = TypeVar("T")


class SharedTorchRuntime(TorchRuntime):
    """Everything of a torch Runtime that does not depend on the kind of device.

    Attributes:
        models, optimizers, schedulers: what prepare was given, each in its order.
        held: of each model, the names of the tensors that its modules hold besides their state.
        global_batch: rows of a global batch, as the last training feed had it; None before, and where the data set decides.
        batches: how many of them that feed had; None before, and where nobody knows.
        dp_rank, dp_size: this process among those that global batches are cut over; where several run one program (SPMD), each
            gives it the whole batch: rank 0 of 1.
        collectives: how what lies on the ranks' devices comes together in a step.
        on_host: whether the device is the host itself, where nothing is copied and reading a number waits for nothing.
        decided: what of the plan prepare decided. search: of the micro-batch, under auto.
        fused_optimizers: whether Adam and AdamW are faster here in their fused kernel.
        compilers: modules that are at work only while something is compiled, besides torch's own.
    """

    device: torch.device
    fused_optimizers = True
    compilers: tuple[str, ...] = ()

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.dp_rank, self.dp_size = self.rank, self.world_size
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedulers: list[Any] = []
        self._scopes = 0
        self.buffers = Buffers()
        self.host_random = HostRandom()
        self.channel = Channel(self.rank, self.world_size)
        self.collectives = Collectives()
        self.empties = Empties()
        self.held: list[frozenset[str]] = []
        self.global_batch: int | None = None
        self.batches: int | None = None
        self._told: set[str] = set()
        self.loop = Loop(self)
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
        self.enter()
        self.on_host = self.device.type == "cpu"
        if settings.deterministic:
            self.say(f"deterministic: {self.make_deterministic()}")
        self.precision = Precision(plan.precision.value, self.device.type)
        self.take_strategy(before_models(self.job))
        parts = settings.virtual_ranks if settings.deterministic else None
        self.gradients = Gradients(self.device, self.dp_size, self.precision.scaler, parts, self.collectives)
        self.backward = self.gradients.backward  # type: ignore[method-assign]  # what a step calls, without a detour
        self.autocast = self.precision.autocast  # type: ignore[method-assign]
        super().start()
        self.watchdog = watch(self, self.ending.store)

    def enter(self) -> None:
        """Opens the device and joins the world, in the order that the device needs."""
        self.device = self.open_device()
        self.join_world()

    def join_world(self) -> None:
        if self.world_size > 1:
            collectives = self.job.caps.collectives
            assert collectives is not None, "make_plan refuses several processes without collectives"
            settings = self.job.settings
            limits = settings.start_timeout, settings.hang_timeout
            self.ending.store = world.join(self.job.world, collectives, self.collective_device, *limits)
            _ = self.channel.group  # made by all ranks now: rank 0 may be the only one to save

    def take_strategy(self, decision: Decision) -> None:
        """Goes on by a strategy, and cuts batches as it needs them."""
        settings = self.job.settings
        self.strategy_decision = decision
        self.strategy = self.make_strategy(decision)
        micro_batch = self.job.plan.micro_batch if isinstance(self.job.plan.micro_batch, int) else None
        self.cut = Cut(self.dp_rank, self.dp_size, micro_batch, settings.virtual_ranks, self.strategy.equal)

    def end(self, error: BaseException | None = None) -> None:
        if error is None:
            self.loop.rest()
        with self.stop_request.stays():
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
        if error is None:
            self.stop_request.pass_on()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        meant = self.stop_request.meant(error)
        told = meant if meant is not error else self._explained(error)
        super().__exit__(kind, meant, trace)
        if told is not None:
            raise told.with_traceback(trace) from None  # the script's line is found there

    def _explained(self, error: BaseException | None) -> BaseException | None:
        return explain(self, self.watchdog, error) or oom.explain(self, error) or self.strategy.explain(error) or no_room(error)

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
            self.lay_out()
        if self.found is not None:
            self.ending.has_saved(self.found.folder)
        return objects[0] if len(objects) == 1 else objects

    @property
    def home(self) -> torch.device:
        """Where models are while they are prepared and a checkpoint is read into them."""
        return self.device

    @property
    def collective_device(self) -> torch.device:
        """Where the tensors lie that ranks exchange through their process group."""
        return self.device

    def decide_strategy(self) -> tuple[Decision, str | None]:
        """The run's strategy, now that its models are known, and a warning. Every rank calls it."""
        return for_models(self.job, self.models, self.optimizers, self.collective_device)

    def make_strategy(self, decision: Decision) -> Strategy:
        """What carries a decision out."""
        return make_strategy(decision.value, self.job, self.device)

    def place(self, model: nn.Module) -> None:
        """Moves a model to its home, in place."""
        model.to(self.device)

    def lay_out(self) -> None:
        """The last of prepare: what was restored at home goes to where it trains."""
        return

    def compile(self, model: nn.Module, blocks: Blocks) -> str:
        """--compile; returns what to say of it."""
        return compile_blocks(model, blocks, self.device)

    def recompute(self, model: nn.Module, blocks: Blocks) -> str:
        """--grad-checkpoint; returns what to say of it."""
        return recompute_blocks(model, blocks)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Name (as optim.names_of gives it) -> parameter, of all prepared models."""
        names = optim.names_of(self.models)
        return {names[id(p)]: p for model in self.models for p in model.parameters()}

    # the loop

    def feed(self, data: Iterable[T], train: bool = True, pad: Mapping[Any, int] | None = None) -> Iterator[T]:
        put = None if self.on_host else self.to_device
        if pad:
            multiple = self.pad_to_multiple_of
            put = lambda batch: self.to_device(padded(batch, pad, multiple))  # noqa: E731
        return self.loop.train(data, put) if train else self.loop.evaluate(data, put)

    @property
    def is_ghost(self) -> bool:
        return self.loop.unit is not None and not self.loop.unit.weight

    def autocast(self) -> AbstractContextManager[Any]:
        return self.precision.autocast()

    def backward(self, loss: Any) -> None:
        self.gradients.backward(loss)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> bool:
        unit = self.loop.unit
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
        loss = self.look(gradients.loss)
        if first:
            self.step_done(loss, lr, unit.total, gradients.count)
        if self.dp_size > 1:
            self.strategy.check(optimizer)
            if first:
                self.buffers.share(self.collectives)
        if type(loss) is not float or math.isfinite(loss):
            gradients.apply(optimizer, clip, self.strategy)
        else:
            self.not_finite.meet(loss, optimizer)
        return True

    def look(self, loss: Any) -> Any:
        """The loss as a number; on a device that works far ahead of the host one that becomes a number later."""
        return float(loss)

    def mean(self, total: Any, count: Any = 1) -> float:
        asked = float(self.stop_request.name is not None)
        self.pulse.count += 1
        where = self.collective_device if self.world_size > 1 else None
        told = torch.tensor([float(total), float(count), asked], dtype=torch.float64, device=where)
        if self.world_size > 1:
            dist.all_reduce(told)
        if told[2] and self.loop.unit is None:  # within a step the step decides
            self.preempt()
        return float(told[0] / told[1])

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        self.loop.rest()
        with self.pulse.during(SAVING):
            folder = saving.save(self, None if path is None else Path(path), wait)
        self.loop.resume()
        self.ending.has_saved(folder)
        return folder

    def bytes_here(self, tensor: torch.Tensor) -> int:
        """What a tensor of the run takes on one device of this rank."""
        return local(tensor).nbytes

    def fetch(self, sets: Mapping[str, Mapping[str, torch.Tensor]]) -> Mapping[str, Mapping[str, torch.Tensor]] | None:
        """The host's copies of what is to be saved, where they are had best, or only, all together; every rank calls it.

        None: each tensor is copied by itself, by the rank that writes it.
        """
        return None

    def barrier(self) -> None:
        self.pulse.count += 1
        if self.ending.agreed() and self.loop.unit is None:
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
