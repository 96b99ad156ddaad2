"""The files of ranks under FSDP v1, made by torch_xla's own class: it cuts a model for any rank without talking to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

KINDS = ("each parameter flattened", "all of a unit flattened", "rows", "nested, flattened", "nested, rows")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(7, 13), nn.BatchNorm1d(13), nn.Linear(13, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.norm(self.up(x)))  # type: ignore[no-any-return]


def model() -> nn.Module:
    """The same each time."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), Block(), Block(), nn.Linear(7, 3))


def write(_rt: Any, size: int, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Writes each rank's file of each kind, into a folder of its name; returns what torch_xla consolidates them to."""
    return {kind: _write(kind, size, folder / kind) for kind in KINDS}


def _write(kind: str, size: int, folder: Path) -> dict[str, torch.Tensor]:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, consolidate_sharded_state_dicts

    folder.mkdir()
    states: list[Any] = []
    for rank in range(size):
        options = {
            "sharding_groups": [list(range(size))],
            "sharding_rank": rank,
            "sharding_world_size": size,
            "flatten_parameters": kind in ("all of a unit flattened", "nested, flattened"),
            "shard_param_on_dim_0": "rows" in kind,
        }
        whole: Any = model()
        if "nested" in kind:
            for place in (1, 2):
                whole[place] = XlaFullyShardedDataParallel(whole[place], **options)
        cut = XlaFullyShardedDataParallel(whole, **options)
        states.append({name: value.cpu() for name, value in cut.state_dict().items()})
        metadata = cut.get_shard_metadata()
        torch.save({"model": states[-1], "shard_metadata": metadata}, folder / f"rank-{rank}-of-{size}.pth")
    return dict(consolidate_sharded_state_dicts(states, metadata))
