"""A stand-in for chips that meet: torch_xla's collectives over gloo, since XLA's CPU platform has none between processes.

Only for tests, and in this file alone: `StandIn` is the multi-process runtime with these collectives under it. A rank's
ordinal is not its number here, as PJRT reserves the right to have it: the last rank comes first, the first second.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from hwal.values import Decision
from hwal_tpu.multi_process import MultiProcessTorchRuntime


class StandIn(MultiProcessTorchRuntime):
    """As many ranks as processes; each chip is an XLA CPU device of its own process."""

    def open_device(self) -> torch.device:
        if self.world_size > 1:
            install(self.rank, self.world_size)
        return super().open_device()


class Sharded(StandIn):
    """FSDP v1 at any world; the plan of one process leaves it out."""

    def decide_strategy(self) -> tuple[Decision, str | None]:
        return Decision("fsdp:full", "for the test"), None


class Gathered(StandIn):
    """The same, whose blocks stay gathered from forward to backward."""

    def decide_strategy(self) -> tuple[Decision, str | None]:
        return Decision("fsdp:grad-op", "for the test"), None


class Reads:
    """Attributes:
    count: how often the stand-in has read from the device, which chips that meet need not.
    """

    count = 0

    @classmethod
    def read(cls, tensor: torch.Tensor) -> torch.Tensor:
        cls.count += 1
        return tensor.cpu()


def install(rank: int, size: int) -> None:
    """Has torch_xla take itself to be one of `size` processes. The host waits in each collective."""
    ordinal = (rank + 1) % size

    def all_reduce(kind: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
        assert (kind, groups) == (xm.REDUCE_SUM, None)
        tensors = [inputs.clone()] if isinstance(inputs, torch.Tensor) else inputs
        for tensor in tensors:
            total = Reads.read(tensor)
            dist.all_reduce(total)
            tensor.copy_(total * scale)
        return tensors[0] if isinstance(inputs, torch.Tensor) else inputs

    def all_gather(value: torch.Tensor, dim: int = 0, groups: Any = None, pin_layout: bool = True) -> torch.Tensor:
        assert (dim, groups) == (0, None)
        mine = Reads.read(value)
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(parts, mine)
        return torch.cat([*parts[-1:], *parts[:-1]]).to(value.device)  # in the order of ordinals

    def reduce_scatter(kind: str, value: torch.Tensor, scale: float, scatter_dim: int, shard_count: int, **_: Any) -> Any:
        assert (kind, scatter_dim, shard_count) == (xm.REDUCE_SUM, 0, size)
        total = Reads.read(value)
        dist.all_reduce(total)
        return (total.chunk(size)[ordinal] * scale).to(value.device)

    for name, function in (("all_reduce", all_reduce), ("all_gather", all_gather), ("reduce_scatter", reduce_scatter)):
        setattr(xm, name, function)
    for name, value in (("global_ordinal", ordinal), ("world_size", size), ("global_runtime_device_count", size)):
        setattr(xr, name, lambda value=value: value)
