"""How what lies on the ranks' devices comes together in the midst of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Collectives:
    """By the world's process group, which is of the devices. A backend whose devices talk in another way has its own."""

    def add_up(self, sums: torch.Tensor, told: Sequence[float]) -> tuple[torch.Tensor, list[float]]:
        """Of all ranks together: a tensor of the device, which stays there, and numbers that the host has. Every rank calls it,
        with as many numbers."""
        numbers = torch.tensor(told, dtype=sums.dtype, device=sums.device)
        both = torch.cat([sums.flatten(), numbers])
        dist.all_reduce(both)
        return both[: sums.numel()].view_as(sums), both[sums.numel() :].tolist()

    def share(self, tensor: torch.Tensor) -> None:
        """Overwrites a tensor of the device with rank 0's; every rank calls it."""
        dist.broadcast(tensor, 0)
