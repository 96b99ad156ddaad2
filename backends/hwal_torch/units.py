"""How a global batch is cut: over ranks, then into micro-batches; or into virtual ranks. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Unit(NamedTuple):
    """One forward of one rank: rows [low, high) of a global batch.

    Attributes:
        weight: 1.0; 0.0 for a ghost, a forward that only keeps this rank in step with the others.
        part: the virtual rank whose random state it runs under, or None.
        first, last: whether it opens or closes its global batch on this rank.
        total: rows of the whole global batch.
    """

    low: int
    high: int
    weight: float
    part: int | None
    first: bool
    last: bool
    total: int

    @property
    def rows(self) -> int:
        return self.high - self.low


@dataclass(frozen=True)
class Cut:
    """The rule by which every global batch of a run is cut for one rank.

    Attributes:
        micro_batch: rows per forward; None: all of a rank's rows at once. Not beside virtual_ranks.
        virtual_ranks: parts the global batch is cut into, each its own forward; a multiple of `world`.
        equal: whether all ranks must run equally many forwards (FSDP), or only at least one each (DDP).
    """

    rank: int = 0
    world: int = 1
    micro_batch: int | None = None
    virtual_ranks: int | None = None
    equal: bool = False

    def units(self, total: int, ghosts: bool = True) -> list[Unit]:
        """The forwards of this rank for a global batch of `total` rows, in order; ranks together cover each row once.

        With `ghosts` a rank short of rows is padded with forwards of weight 0 over the batch's first row.
        """
        spans = self._spans(self.rank, total)
        if ghosts and total:
            need = max(len(self._spans(rank, total)) for rank in range(self.world)) if self.equal else 1
            missing = max(0, need - len(spans))
        else:
            missing = 0
        count = len(spans) + missing
        rows = [(low, high, 1.0, part) for low, high, part in spans] + [(0, 1, 0.0, None)] * missing
        return [Unit(*row, i == 0, i == count - 1, total) for i, row in enumerate(rows)]

    def _spans(self, rank: int, total: int) -> list[tuple[int, int, int | None]]:
        """(low, high, part) of each forward that has rows."""
        if self.virtual_ranks is not None:
            parts, per = self.virtual_ranks, self.virtual_ranks // self.world
            cuts = [(total * part // parts, total * (part + 1) // parts, part) for part in range(rank * per, (rank + 1) * per)]
            return [(low, high, part) for low, high, part in cuts if high > low]
        low, high = total * rank // self.world, total * (rank + 1) // self.world
        size = self.micro_batch or max(high - low, 1)
        return [(start, min(start + size, high), None) for start in range(low, high, size)]
