"""Streams, and data sets that make whole batches: every rank reads all of them and keeps its slice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.data import DataLoader, IterableDataset, default_collate

from hwal.errors import ScriptError
from hwal_torch.order import order_of
from hwal_torch.reading import Fed, Reading, each, rebuilt, regrouped
from hwal_torch.seeding import mix, seed_host
from hwal_torch.units import Unit


def read_whole(
    loader: DataLoader[Any], reading: Reading, say: Callable[[str], None], tick: Callable[[], None]
) -> Iterator[Fed]:
    """Yields (unit, collated rows) for this rank. Raises ScriptError for batches that cannot be cut, or joined."""
    if reading.cut.world > 1:
        say(f"every rank reads the whole data set and keeps its slice: {reading.cut.world} times the reading (rt.feed)")
    parts: dict[str, Any]
    if loader.batch_size is None:
        if reading.global_batch is not None:
            raise ScriptError(
                "--global-batch cannot override batches that the data set makes itself",
                where="rt.feed",
                hint="leave it out, and change the data set's own batch size",
            )
        own = {} if isinstance(loader.dataset, IterableDataset) else {"sampler": _Fixed(order_of(loader.sampler, reading.seed))}
        parts = {"batch_size": None, **own}
        kind: Batches = WholeBatches(loader.collate_fn, reading)
    else:
        parts = {"batch_size": reading.global_batch or loader.batch_size, "drop_last": loader.drop_last}
        kind = Samples(loader.collate_fn, reading)
    # Workers cut, unless batches of several of them may have to be joined.
    collate = kind.made if reading.regroups else kind
    again = rebuilt(loader, reading, dataset=loader.dataset, collate_fn=collate, **parts)
    with closing(each(again) if loader.num_workers else _drawing_alike(again, reading)) as batches:
        for _ in range(reading.skip):  # what was read before is read again
            next(batches, None)
            tick()
        for fed in map(kind.cut, regrouped(batches, reading, kind.rows, kind.join)) if reading.regroups else batches:
            yield from fed


def _drawing_alike(loader: DataLoader[Any], reading: Reading) -> Generator[Any, None, None]:
    """Reads in this process. A data set may draw as it is read, its order too: that must be the same on every rank. What the
    forward draws then must not."""
    seed_host(reading.seed)
    batches = iter(loader)
    for number in count():
        seed_host(mix(reading.seed, number))
        batch = next(batches, None)
        seed_host(mix(reading.seed, number, reading.cut.rank))
        if batch is None:
            return
        yield batch


@dataclass(frozen=True)
class Batches(ABC):
    """One kind of global batches that are read as a whole, and cut then: called with what the data set gives, it returns
    the forwards of this rank. Runs in the loader's workers."""

    collate: Callable[[Any], Any]
    reading: Reading

    def __call__(self, given: Any) -> list[Fed]:
        return self.cut(self.made(given))

    @abstractmethod
    def made(self, given: Any) -> Any:
        """The batch before it is cut."""

    @abstractmethod
    def rows(self, batch: Any) -> int:
        """How many rows a batch has."""

    @abstractmethod
    def join(self, batches: list[Any]) -> Any:
        """One batch of several."""

    @abstractmethod
    def part(self, batch: Any, unit: Unit) -> Any:
        """The rows of one forward."""

    def cut(self, batch: Any) -> list[Fed]:
        return [(unit, self.part(batch, unit)) for unit in self.reading.cut.units(self.rows(batch), self.reading.train)]


class Samples(Batches):
    """Lists of samples; the rows of each forward are collated by themselves."""

    def made(self, given: Any) -> Any:
        return given

    def rows(self, batch: Any) -> int:
        return len(batch)

    def join(self, batches: list[Any]) -> Any:
        return list(chain.from_iterable(batches))

    def part(self, batch: Any, unit: Unit) -> Any:
        return self.collate(batch[unit.low : unit.high])

    def cut(self, batch: Any) -> list[Fed]:
        if self.collate is default_collate:
            return super().cut(batch)
        # Another may draw: for each forward by itself, so that reading goes on from the same state on every rank.
        seed = int(torch.randint(1 << 62, ()))
        fed = []
        for unit in self.reading.cut.units(len(batch), self.reading.train):
            seed_host(mix(seed, unit.low))
            fed.append((unit, self.part(batch, unit)))
        seed_host(mix(seed, len(batch)))
        return fed


class WholeBatches(Batches):
    """Batches that the data set made, cut along the first dimension of their tensors."""

    def made(self, given: Any) -> Any:
        return self.collate(given)

    def rows(self, batch: Any) -> int:
        sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()}
        if len(sizes) != 1:
            raise ScriptError(
                f"a batch of this data set cannot be cut: its tensors' first dimensions are {sorted(sizes) or 'none'}",
                hint="give the DataLoader a batch_size and let it collate single samples",
            )
        return sizes.pop()

    def join(self, batches: list[Any]) -> Any:
        def joined(*leaves: Any) -> Any:
            return torch.cat(leaves) if isinstance(leaves[0], torch.Tensor) and leaves[0].dim() else leaves[0]

        try:
            return tree_map(joined, *batches)
        except (ValueError, RuntimeError) as error:
            raise ScriptError(
                "two batches of this data set cannot be joined, and one has fewer rows than there are ranks",
                why=str(error).splitlines()[0],
                hint="evaluate in larger batches, or give the DataLoader a batch_size and let it collate single samples",
            ) from None

    def part(self, batch: Any, unit: Unit) -> Any:
        rows = slice(unit.low, unit.high)
        return tree_map_only(torch.Tensor, lambda tensor: tensor[rows] if tensor.dim() else tensor, batch)


class _Fixed:
    """An order that is already decided, as a sampler."""

    def __init__(self, order: Iterable[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)
