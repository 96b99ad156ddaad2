"""feed: the user's DataLoader, read again so that every world sees the same global batches.

The order of samples is a function of (seed, epoch) alone; a global batch keeps its true size at the ragged end; what a
rank gets of it is Cut's rule. The user's collate function, workers and samplers stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from hwal.errors import ScriptError
from hwal_torch.seeding import mix, seed_host, seeded
from hwal_torch.units import Cut, Unit

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


def read(loader: DataLoader[Any], reading: Reading, say: Callable[[str], None]) -> Iterator[Fed]:
    """Yields (unit, collated rows) for this rank. Raises ScriptError for a loader that cannot be cut."""
    if not isinstance(loader, DataLoader):
        raise ScriptError(
            f"rt.feed() takes a torch DataLoader, not a {type(loader).__name__}",
            hint="DataLoader(dataset, batch_size=GLOBAL_BATCH, shuffle=True)",
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return _read_whole(loader, reading, say)
    return _read_indexed(loader, reading)


# datasets with an index: only this rank's rows are read


def _read_indexed(loader: DataLoader[Any], reading: Reading) -> Iterator[Fed]:
    queued: deque[Unit] = deque()

    def batches() -> Iterator[list[int]]:
        units: list[Unit] = []
        for number, indices in enumerate(global_batches(loader, reading)):
            if number < reading.skip:
                continue
            if not units or units[0].total != len(indices):  # nearly every batch is cut like the one before
                units = reading.cut.units(len(indices), ghosts=reading.train)
            for unit in units:
                queued.append(unit)
                chosen = indices[unit.low : unit.high]
                if loader.num_workers:
                    yield Indices(chosen, [mix(reading.seed, number, unit.low + i) for i in range(unit.rows)])
                else:
                    yield chosen

    dataset = SeededDataset(loader.dataset) if loader.num_workers else loader.dataset
    for data in _rebuilt(loader, reading, dataset=dataset, batch_sampler=batches(), collate_fn=loader.collate_fn):
        yield queued.popleft(), data


class Indices(list[int]):
    """The indices of one forward and the seed of each of its samples."""

    def __init__(self, indices: Iterable[int], seeds: list[int]) -> None:
        super().__init__(indices)
        self.seeds = seeds

    def __reduce__(self) -> Any:  # on its way to a worker
        return Indices, (list(self), self.seeds)


class SeededDataset(Dataset[Any]):
    """In a loader's worker: every sample is read under a seed of its own, so that random augmentation does not depend
    on the world, the micro-batch or which worker reads it. In the main process this would cost 7 µs a sample, and the
    random state of the step serves instead."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Indices) -> list[Any]:
        dataset: Any = self.dataset
        wanted = list(indices)
        while type(dataset) is Subset:  # it has __getitems__ whether or not the data set below reads many at once
            dataset, wanted = dataset.dataset, [dataset.indices[index] for index in wanted]
        many = getattr(dataset, "__getitems__", None)
        if many is not None:
            seed_host(indices.seeds[0])
            return many(wanted)  # type: ignore[no-any-return]
        samples = []
        for index, seed in zip(wanted, indices.seeds, strict=True):
            seed_host(seed)
            samples.append(dataset[index])
        return samples


def global_batches(loader: DataLoader[Any], reading: Reading) -> Iterator[list[int]]:
    """The indices of each global batch of this pass, the same on every rank."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        if reading.global_batch is not None:
            raise ScriptError("--global-batch cannot override a batch sampler of the script's own", where="rt.feed")
        yield from map(list, _under_seed(batch_sampler, reading.seed))
        return
    size = reading.global_batch or batch_sampler.batch_size
    order = iter(_order(batch_sampler.sampler, reading.seed))
    while batch := list(islice(order, size)):
        if len(batch) == size or not batch_sampler.drop_last:
            yield batch


def _order(sampler: Any, seed: int) -> Iterable[int]:
    """Sample indices in this pass's order. A plain RandomSampler is replaced by a permutation of (seed, epoch)."""
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ScriptError(
            "the loader has a DistributedSampler, but rt.feed() does the splitting itself",
            hint="DataLoader(dataset, batch_size=GLOBAL_BATCH, shuffle=True) without a sampler",
        )
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        order = torch.randperm(len(sampler.data_source), generator=torch.Generator().manual_seed(seed))
        chunks = range(0, len(order), 65536)  # a list of all would cost 32 bytes a sample
        return chain.from_iterable(order[start : start + 65536].tolist() for start in chunks)
    if type(sampler) is SequentialSampler:
        return range(len(sampler.data_source))
    return _under_seed(sampler, seed)


def _under_seed(sampler: Any, seed: int) -> Iterator[Any]:
    """Iterates a sampler of the user's with random state that depends on `seed` alone, and leaves everyone else's alone."""
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(seed & 0x7FFFFFFF)
    generator = getattr(sampler, "generator", None)
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    if hasattr(sampler, "__len__"):
        with seeded(seed):
            everything = list(sampler)
        yield from everything
        return
    iterator = iter(sampler)  # it may never end: draw one by one, each draw under its own seed
    for number in range(1 << 62):
        with seeded(mix(seed, number)):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


# streams, and datasets that yield whole batches: every rank reads all and keeps its slice


def _read_whole(loader: DataLoader[Any], reading: Reading, say: Callable[[str], None]) -> Iterator[Fed]:
    if reading.cut.world > 1:
        say(f"every rank reads the whole data set and keeps its slice: {reading.cut.world} times the reading (rt.feed)")
    parts: dict[str, Any]
    if loader.batch_size is None:
        if reading.global_batch is not None:
            raise ScriptError("--global-batch cannot override batches that the data set makes itself", where="rt.feed")
        own = {} if isinstance(loader.dataset, IterableDataset) else {"sampler": _Fixed(_order(loader.sampler, reading.seed))}
        parts = {"batch_size": None, "collate_fn": WholeBatch(loader.collate_fn, reading), **own}
    else:
        size = reading.global_batch or loader.batch_size
        parts = {"batch_size": size, "drop_last": loader.drop_last, "collate_fn": OwnRows(loader.collate_fn, reading)}
    batches = iter(_rebuilt(loader, reading, dataset=loader.dataset, **parts))
    with seeded(reading.seed):  # what was read before is read again, and draws as it did then: not from the step to come
        for _ in range(reading.skip):
            next(batches, None)
    for fed in batches:
        yield from fed


@dataclass(frozen=True)
class OwnRows:
    """Collates, of a global batch of samples, the forwards of this rank. Runs in the loader's workers."""

    collate: Callable[[list[Any]], Any]
    reading: Reading

    def __call__(self, samples: list[Any]) -> list[Fed]:
        units = self.reading.cut.units(len(samples), ghosts=self.reading.train)
        return [(unit, self.collate(samples[unit.low : unit.high])) for unit in units]


@dataclass(frozen=True)
class WholeBatch:
    """Cuts a batch that the data set made, along the first dimension of its tensors."""

    collate: Callable[[Any], Any]
    reading: Reading

    def __call__(self, batch: Any) -> list[Fed]:
        batch = self.collate(batch)
        sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()}
        if len(sizes) != 1:
            raise ScriptError(
                f"a batch of this data set cannot be cut: its tensors' first dimensions are {sorted(sizes) or 'none'}",
                hint="give the DataLoader a batch_size and let it collate single samples",
            )
        units = self.reading.cut.units(sizes.pop(), ghosts=self.reading.train)
        return [(unit, _rows(batch, unit)) for unit in units]


def _rows(batch: Any, unit: Unit) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor[unit.low : unit.high] if tensor.dim() else tensor, batch)


class _Fixed:
    """An order that is already decided, as a sampler."""

    def __init__(self, order: Iterable[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


def _rebuilt(loader: DataLoader[Any], reading: Reading, **parts: Any) -> DataLoader[Any]:
    """The user's loader with other parts. Its workers' base seed follows this pass's."""
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {"prefetch_factor": loader.prefetch_factor, "multiprocessing_context": loader.multiprocessing_context}
    return DataLoader(
        num_workers=loader.num_workers,
        pin_memory=reading.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=torch.Generator().manual_seed(reading.seed),
        **workers,
        **parts,
    )
