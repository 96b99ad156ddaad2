"""torch on TPUs by PyTorch/XLA: one process a host drives all its chips with one program (SPMD), or, where -n asks for it,
each chip has a process (hwal_tpu.multi_process).

The script sees one device. What it does there is recorded, and runs when a step is done or a number is read; each new graph
is compiled first. So numbers stay on the device, and shapes few. `--device tpu:cpu:4` runs the same on XLA's CPU platform.

Several hosts of a slice run one program together: each reads every global batch and sends its own devices' rows of it. What
the hosts must agree on besides, when to end above all, they tell each other through gloo.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from hwal.errors import DeviceError, WorldError
from hwal.plan.strategy import is_sharded
from hwal.resident import peak_resident_bytes, resident_bytes
from hwal.runtime import Job, Memory
from hwal.values import AUTO, Decision
from hwal.watch.spot import Library, Signs
from hwal_torch.blocks import Blocks, find_blocks
from hwal_torch.late import Late, Lates
from hwal_torch.recompute import recompute_blocks
from hwal_torch.runtime import SharedTorchRuntime
from hwal_torch.strategy import Strategy
from hwal_torch.units import Unit
from hwal_tpu import xla
from hwal_tpu.graphs import EVALUATION, Graphs, cache_of, make_cache
from hwal_tpu.placing import Placed
from hwal_tpu.spmd import FullyShard, Spmd
from hwal_tpu.virtual import is_virtual

T = TypeVar("T")
GRAD_OP = "fsdp:grad-op"
READ_EVERY = 50  # steps: losses are read together, and when their step is long done


class TpuTorchRuntime(SharedTorchRuntime):
    """What SPMD and a process a chip share: a device that works ahead of the host, whose numbers are read late.

    Attributes:
        graphs: what XLA compiled. lates: losses and counts that are still on the device.
    """

    fused_optimizers = False
    pad_to_multiple_of = 64
    compilers = ("torch_xla.torch_xla",)  # its sync() compiles; it also waits there, for which half an hour is long

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.graphs = Graphs(xla.compiled())
        self.lates = Lates(xla.read, READ_EVERY)
        self._unchecked: deque[tuple[int, Late]] = deque()  # step, loss
        self._library = Library()
        self._started = False  # what the forward at work has recorded

    def enter(self) -> None:
        self.join_world()  # first: where a host is missing libtpu would wait for it, and name nobody
        self._keep_graphs()
        self.device = self.open_device()

    def _keep_graphs(self) -> None:
        """Has compiled graphs kept from run to run, where that is wanted and works."""
        if (folder := cache_of(os.environ, self.job.world, is_virtual(self.job.hardware))) is not None:
            if (wrong := make_cache(folder)) is None:
                xla.keep_graphs(folder)
            else:
                self.say_once(wrong)

    @property
    def collective_device(self) -> torch.device:
        return torch.device("cpu")

    def seed_device(self, seed: int) -> None:
        xla.seed(seed)

    def memory(self) -> Memory:
        if (known := xla.memory()) is not None:
            return Memory(known[0], None, known[1], "PJRT")
        return Memory(resident_bytes(), peak_resident_bytes(), self.job.hardware.memory_bytes, "procfs")

    # before the loop

    @property
    def home(self) -> torch.device:
        return torch.device("cpu")

    def place(self, model: nn.Module) -> None:
        """Nothing yet: a checkpoint is read into the host's memory, and what is cut goes to the devices in parts."""

    def lay_out(self) -> None:
        for model in self.models:
            told = cast(Placed, self.strategy).place(model, self.optimizers, find_blocks(model, self.job.plan.wrap))
            if told is not None:
                self.say_once(told)
        xla.sync()

    @abstractmethod
    def send(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of a batch's tensors where the forward has them."""

    def compile(self, model: nn.Module, blocks: Blocks) -> str:
        return "--compile changes nothing here: XLA compiles every step"

    def recompute(self, model: nn.Module, blocks: Blocks) -> str:
        return recompute_blocks(model, blocks, _recompute)

    # the loop

    def feed(self, data: Iterable[T], train: bool = True, pad: Mapping[Any, int] | None = None) -> Iterator[T]:
        self.graphs.between(xla.compiled())
        with closing(cast(Any, super().feed(data, train, pad))) as batches:
            for batch in batches:
                self._started = False
                yield batch
                if not self._started:
                    self._start_graph()
        self._check(settle=True)

    def to_device(self, batch: Any) -> Any:
        if isinstance(batch, Mapping) and not isinstance(batch, dict):  # a tokenizer's BatchEncoding: a leaf to pytree
            kind: Any = type(batch)
            return kind(self.to_device(dict(batch)))
        leaves, spec = tree_flatten(batch)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"]
        for i, tensor in zip(places, self.send([leaves[i] for i in places]), strict=True):
            leaves[i] = tensor
        unit = self.loop.unit
        self.graphs.begin(batch, self._place_of(unit), self.steps_done + (unit is not None))
        return tree_unflatten(leaves, spec)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> bool:
        done = super().step(optimizer, clip)
        self._start_graph()
        if not done:
            return False
        if self.search is not None and not self.search.proved:
            self._check(settle=True)  # what did not fit is told when a number of it is read
        elif self.lates.turn():
            self._check()
        return True

    def look(self, loss: Any) -> Any:
        if self.job.settings.on_nan == "skip":  # whether to update is to be known before the update
            return float(loss)
        return self.lates.later(loss)

    def step_done(self, loss: Any, lr: float | None, samples: int, count: Any = None) -> None:
        super().step_done(loss, lr, samples, self.lates.later(count))
        if isinstance(loss, Late):
            self._unchecked.append((self.progress.step, loss))

    def log(self, **values: Any) -> None:
        super().log(**{name: self.lates.later(value) for name, value in values.items()})

    def fetch(self, sets: Mapping[str, Mapping[str, torch.Tensor]]) -> Mapping[str, Mapping[str, torch.Tensor]]:
        names = [(name, key) for name, tensors in sets.items() for key in tensors]
        fetched = iter(xla.fetch([sets[name][key] for name, key in names]))
        return {name: {key: next(fetched) for key in tensors} for name, tensors in sets.items()}

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        # Weights that are no numbers are not saved; and what is saved with them is read here: XLA is used on this thread alone.
        self._check(settle=True)
        return super().save(path, wait)

    def end(self, error: BaseException | None = None) -> None:
        try:
            if error is None:
                self._check(settle=True)
            elif xla.process_count() == 1:  # others may not come to the same reading
                with suppress(RuntimeError):  # the device may be what failed
                    self.lates.settle()
            for line in self.graphs.summary(self.progress.step):
                self.say(line)
            read, refused = xla.kept()
            if read or refused:
                self.say(f"{read} graphs came from the cache" + (f", {refused} there could not be used" if refused else ""))
            if slow := xla.on_host():
                counted = ", ".join(f"{name.removeprefix('aten::')} {count} times" for name, count in slow.items())
                self.say(f"XLA has no {counted}: the host computed that, and each time the device waited")
        except BaseException as found:
            error = error or found
            raise
        finally:
            super().end(error)

    @staticmethod
    def _place_of(unit: Unit | None) -> str:
        """Where in its step a forward is: gradients are made, added to, used there, each in a graph of its own."""
        return EVALUATION if unit is None else "first " * unit.first + "last" * unit.last

    def _start_graph(self) -> None:
        self._started = True
        xla.sync()
        if (compiled := xla.compiled()) > self.graphs.known:
            line = self._library.spot(sys._getframe(1), Signs()).line
            self.graphs.look(compiled, line)

    def _check(self, settle: bool = False) -> None:
        """Looks at the losses that have been read. Raises ScriptError for one that is no number."""
        if settle:
            self.lates.settle()
        while self._unchecked and not self._unchecked[0][1].pending:
            step, loss = self._unchecked.popleft()
            if not isfinite(loss):
                self._unchecked.clear()
                self.not_finite.found_late(step, float(loss))


class SpmdTorchRuntime(TpuTorchRuntime):
    """One process a host, which drives all its chips: one program for all devices of all processes."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.dp_rank, self.dp_size = 0, 1

    def open_device(self) -> torch.device:
        device = xla.open_device()
        self._check_world(xla.process_count())
        self._check_devices(xla.device_count())
        self.mesh = xla.Mesh()
        xla.set_precision(self.job.plan.precision.value)
        return device

    def _check_world(self, processes: int) -> None:
        """Raises WorldError where PJRT has not brought the devices of the world's processes together."""
        if processes == self.world_size:
            return
        where = f"rank {self.rank}, world from {self.job.world.launcher}"
        if self.world_size == 1:
            raise WorldError(
                f"this host is one of {processes} of a slice, and was started as if it were alone",
                where=where,
                why="no TPU_* variable says so; the metadata server does, which is asked only on request",
                hint="HWAL_TPU_METADATA=1 has it asked, on each host",
            )
        virtual = is_virtual(self.job.hardware)
        raise WorldError(
            f"the world has {self.world_size} processes, and PJRT has brought the devices of {processes} together",
            where=where,
            why="XLA's CPU platform reaches no other process" if virtual else "the hosts are not those of one slice",
            hint="one process: --device tpu:cpu:N has as many devices"
            if virtual
            else "start the run on each host of one slice",
        )

    def _check_devices(self, count: int) -> None:
        """Raises DeviceError where XLA has opened other devices than the plan has."""
        planned = len(self.job.devices) * xla.process_count()
        if count == planned:
            return
        given = "CPU_NUM_DEVICES" if is_virtual(self.job.hardware) else "TPU_VISIBLE_CHIPS"
        raise DeviceError(
            f"XLA has opened {count} device{'s' * (count != 1)}, and the plan has {planned}",
            where=f"{given}={os.environ.get(given, '')}",
            why="the variable says something else than --device, or the script opened XLA before hwal.start()",
            hint=f"unset {given}; hwal.start() before anything else uses torch_xla",
        )

    def decide_strategy(self) -> tuple[Decision, str | None]:
        asked = self.job.plan.strategy
        devices = xla.device_count()
        if devices == 1:
            return Decision("single", "one device"), None
        if asked.value == AUTO:
            return Decision("fsdp:full", f"by SPMD over {devices} devices: the least memory, and one program"), None
        if asked.value == GRAD_OP:
            return Decision("fsdp:full", f"{GRAD_OP} asked for; the compiler decides how long a block stays gathered"), None
        return asked, None

    def make_strategy(self, decision: Decision) -> Strategy:
        return (FullyShard if is_sharded(decision.value) else Spmd)(decision.value, self.mesh)

    def send(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.mesh.send(tensors, cut=True)

    def bytes_here(self, tensor: torch.Tensor) -> int:
        return -(-tensor.nbytes // xla.device_count()) if xla.is_cut(tensor) else tensor.nbytes

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> bool:
        done = super().step(optimizer, clip)
        if done:
            self.gradients.stop = self.ending.any(self.gradients.stop)
        return done


def _recompute(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch's own would be undone by XLA, which sees that the same is computed twice; its own puts a barrier between."""
    from torch_xla.utils.checkpoint import checkpoint

    return checkpoint(partial(forward, **kwargs), *args)
