"""One pass over a DataLoader, and what every way of reading it needs: the loader rebuilt, batches regrouped."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from hwal.errors import ScriptError
from hwal.preempt import linger
from hwal_torch.sockets import check_sockets
from hwal_torch.units import Cut, Unit, grouped

T = TypeVar("T")
Fed = tuple[Unit, Any]


@dataclass(frozen=True)
class Reading:
    """One pass over a loader: the rule of cutting, the seed of its order, and how many global batches are already done."""

    cut: Cut
    seed: int
    train: bool
    skip: int = 0
    global_batch: int | None = None
    pin_memory: bool = False

    @property
    def regroups(self) -> bool:
        """Whether batches may have to be joined, so that each rank has rows in all of its forwards."""
        return self.cut.equal and self.cut.world > 1 and not self.train


def rebuilt(loader: DataLoader[Any], reading: Reading, **parts: Any) -> DataLoader[Any]:
    """The user's loader with other parts. Its workers' base seed follows this pass's."""
    workers: dict[str, Any] = {}
    if loader.num_workers:
        check_sockets()
        workers = {"prefetch_factor": loader.prefetch_factor, "multiprocessing_context": loader.multiprocessing_context}
    return DataLoader(
        num_workers=loader.num_workers,
        pin_memory=reading.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=Began(loader.worker_init_fn),
        generator=torch.Generator().manual_seed(reading.seed),
        **workers,
        **parts,
    )


def each(loader: DataLoader[T]) -> Generator[T, None, None]:
    """A loader's batches. Its workers end with the reading, by an error too: the traceback of one that came from a worker
    holds on to the others, which would be told at the process's end, and take their time then (Began)."""
    batches = iter(loader)
    try:
        yield from batches
    finally:
        if loader.num_workers:
            batches._shutdown_workers()  # type: ignore[attr-defined]


def length(loader: Any, batch: int | None) -> int | None:
    """Global batches in one pass over a loader, where it knows; `batch`: rows of each, None for the loader's own number."""
    try:
        if batch is None:
            return len(loader)
        return len(loader.sampler) // batch if loader.drop_last else -(-len(loader.sampler) // batch)
    except (TypeError, AttributeError):  # a stream has no length
        return None


class Began:
    """Runs first in a worker: a signal to all processes of the run must not take it from a step that needs its data."""

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self.then = then

    def __call__(self, worker: int) -> None:
        linger()
        if self.then is not None:
            self.then(worker)


def regrouped(batches: Iterable[T], reading: Reading, rows: Callable[[T], int], join: Callable[[list[T]], T]) -> Iterator[T]:
    """Batches with a row or more for each rank. Raises ScriptError where there are not that many rows in all."""
    world = reading.cut.world
    for group in grouped(batches, rows, world):
        if (there := sum(map(rows, group))) < world:
            raise ScriptError(
                f"an evaluation of {there} row(s) on {world} ranks: all of them must have one",
                where="rt.feed",
                why="parameters are sharded, so that every forward needs all ranks",
                hint=f"evaluate on {world} rows or more, or train with --strategy ddp",
            )
        yield join(group) if len(group) > 1 else group[0]
