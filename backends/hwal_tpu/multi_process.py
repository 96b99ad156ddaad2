"""A process a chip, as torch_xla.launch has it: each rank one XLA device, its own rows of each global batch, its own program.

The ranks' programs bring gradients and losses together by collectives between the chips; all else that ranks tell each
other, whom to wait for and when to end above all, goes over gloo, so that no rank waits for its chip. What a rank computes
from its rows alone is one graph, and what all ranks compute together another that depends on no rows: chips that meet in a
collective must run the same program, and ranks may have batches of different shapes.

XLA's CPU platform has no collectives between processes. So what is tested is all but these: a world of one by torch_xla's
own, worlds of two by collectives that go over gloo (tests/tpu/stand_in.py). That chips meet is seen on TPUs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from hwal.errors import WorldError
from hwal.plan.strategy import is_sharded
from hwal.runtime import Job
from hwal.values import Decision
from hwal_torch.blocks import Blocks
from hwal_torch.collectives import Collectives
from hwal_torch.strategy import Strategy, not_brought_together, refuse_shared
from hwal_torch.units import Unit
from hwal_tpu import xla
from hwal_tpu.placing import Placed, equalize, place
from hwal_tpu.torch_runtime import TpuTorchRuntime
from hwal_tpu.virtual import is_virtual


class MultiProcessTorchRuntime(TpuTorchRuntime):
    """One rank of several, with a device of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.collectives: ChipCollectives = ChipCollectives()

    def open_device(self) -> torch.device:
        device = xla.open_chip()
        own, everywhere = xla.own_device_count(), xla.device_count()
        if (own, everywhere) != (1, self.world_size):
            virtual = is_virtual(self.job.hardware)
            raise WorldError(
                f"{self.world_size} ranks of one device each, and PJRT has {own} in this process and {everywhere} in all",
                where=f"rank {self.rank}, world from {self.job.world.launcher}",
                why="XLA's CPU platform reaches no other process" if virtual else "libtpu has brought other chips together",
                hint="leave -n out: one process drives all devices" if virtual else "start the ranks by hwal train -n",
            )
        self.collectives.root = self.channel.share(xla.ordinal())
        xla.set_precision(self.job.plan.precision.value)
        return device

    def make_strategy(self, decision: Decision) -> Strategy:
        if is_sharded(decision.value):
            from hwal_tpu.fsdp_v1 import FullyShardV1

            return FullyShardV1(decision.value, self.job.plan.precision.value, self.channel)
        return Replicated(decision.value)

    def send(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return xla.send(tensors)

    def fetch(self, sets: Mapping[str, Mapping[str, torch.Tensor]]) -> Mapping[str, Mapping[str, torch.Tensor]]:
        if self.strategy.sharded:
            return cast(Any, self.strategy).as_parts(super().fetch(sets), sets, self.optimizers)  # type: ignore[no-any-return]
        return super().fetch(sets) if self.is_main else {name: {} for name in sets}  # rank 0 writes


class ChipCollectives(Collectives):
    """Between chips within XLA's graphs; numbers of the host through the world's process group, which is of the hosts.

    Attributes:
        root: rank 0's ordinal.
    """

    root = 0

    def add_up(self, sums: torch.Tensor, told: Sequence[float]) -> tuple[torch.Tensor, list[float]]:
        xla.sync()  # what came of this rank's rows is one graph; the next is the same on all ranks
        total = sums.clone()
        xla.add_up([total])
        numbers = torch.tensor(told, dtype=torch.float64)
        dist.all_reduce(numbers)
        return total, numbers.tolist()

    def share(self, tensor: torch.Tensor) -> None:
        xla.broadcast([tensor], self.root)


class Replicated(Placed):
    """A whole model on each chip; gradients are added up when a global batch is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._models: list[nn.Module] = []
        self._parameters: list[nn.Parameter] = []
        self._known: set[int] = set()

    def install(self, model: nn.Module) -> None:
        refuse_shared(model, self._models)
        equalize(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._models.append(model)
        self._parameters += trained
        self._known.update(map(id, trained))

    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        place(model, optimizers, lambda tensor, _: xla.send([tensor])[0])
        return None

    def sync(self, unit: Unit) -> None:
        self.training = True

    def flags(self) -> list[float]:
        return [float(parameter.grad is not None) for parameter in self._parameters]

    def reduced(self, flags: list[float]) -> None:
        xla.add_up_gradients(self._parameters, flags)

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if any(parameter.grad is not None and id(parameter) not in self._known for parameter in group["params"]):
                raise not_brought_together("its parameter was not prepared, or was frozen at that time")
