"""Buffers that belong to a model's state (batch norm's running statistics, counters): rank 0's are everyone's."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from hwal_torch.collectives import Collectives


class Buffers:
    """The persistent buffers of the prepared models. Each rank's forwards change its own; those of rank 0 are saved, so all
    ranks go on from them after every step, and evaluate one model."""

    def __init__(self) -> None:
        self._places: list[tuple[nn.Module, str]] = []

    def add(self, model: nn.Module) -> None:
        """Counts the buffers of a model, once it is on its device."""
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.numel() and name not in module._non_persistent_buffers_set:
                    self._places.append((module, name))

    def copies(self) -> list[torch.Tensor]:
        """Their values now."""
        return [getattr(module, name).clone() for module, name in self._places]

    def put(self, values: list[torch.Tensor]) -> None:
        """Overwrites them with what copies() gave."""
        for (module, name), value in zip(self._places, values, strict=True):
            getattr(module, name).copy_(value)

    def share(self, collectives: Collectives) -> None:
        """Overwrites them with those of rank 0; every rank calls it."""
        if not self._places:
            return
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for module, name in self._places:
            buffer = getattr(module, name)
            by_dtype[buffer.dtype].append(buffer)
        for buffers in by_dtype.values():
            flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
            collectives.share(flat)
            for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
                buffer.copy_(part.view_as(buffer))
