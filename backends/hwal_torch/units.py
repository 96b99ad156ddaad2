"""How a global batch is cut: over ranks, then into micro-batches; or into virtual ranks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Unit(NamedTuple):
    """One forward of one rank: rows [low, high) of a global batch.

    Attributes:
        weight: 1.0; 0.0 for a ghost, a forward that only keeps this rank in step with the others.
        part: the virtual rank whose random state it runs under, a ghost's too; or None.
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

    def units(self, total: int, train: bool = True) -> list[Unit]:
        """The forwards of this rank for a global batch of `total` rows, in order; ranks together cover each row once.

        In training a rank short of rows is padded with ghosts, forwards of weight 0 over the batch's first row. A script
        that evaluates counts what it sees, so there are none then: where all ranks must run equally many, the rows are
        spread so that each has some in every forward, for which `total` must be no less than the world.
        """
        if self.equal and not train:
            spans, missing = self._even_spans(total), 0
        else:
            spans = self._spans(self.rank, total)
            need = max(len(self._spans(rank, total)) for rank in range(self.world)) if self.equal else min(total, 1)
            missing = max(0, need - len(spans)) if train else 0
        count = len(spans) + missing
        parts = self.virtual_ranks
        ghost = (0, 1, 0.0, -(-parts // total) - 1 if parts and total else None)  # as the part that has the first row
        rows = [(low, high, 1.0, part) for low, high, part in spans] + [ghost] * missing
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

    def _even_spans(self, total: int) -> list[tuple[int, int, int | None]]:
        """As _spans, the same number on every rank. Micro-batches of one row may have to hold two."""
        least, most = total // self.world, -(-total // self.world)
        low, high = total * self.rank // self.world, total * (self.rank + 1) // self.world
        wanted = self.virtual_ranks // self.world if self.virtual_ranks else -(-most // (self.micro_batch or max(most, 1)))
        count = min(wanted, least)
        cuts = [low + (high - low) * i // count for i in range(count)] + [high]
        return [(start, end, None) for start, end in pairwise(cuts)]


def grouped(batches: Iterable[T], rows: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Consecutive batches in groups of `least` rows or more: a small one goes with those behind it, a rest that is smaller
    still with the group before it. Together they are one group that is too small where there are no more rows at all."""
    ready: list[T] = []
    growing: list[T] = []
    for batch in batches:
        growing.append(batch)
        if sum(map(rows, growing)) >= least:
            if ready:
                yield ready
            ready, growing = growing, []
    if rest := ready + growing:
        yield rest
