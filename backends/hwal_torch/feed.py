"""feed: the user's DataLoader, read again so that every world sees the same global batches.

The order of samples is a function of (seed, epoch) alone; a global batch keeps its true size at the ragged end; what a
rank gets of it is Cut's rule. The user's collate function, workers and samplers stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hwal.errors import ScriptError
from hwal_torch.order import global_batches
from hwal_torch.reading import Fed, Reading, each, rebuilt, regrouped
from hwal_torch.seeding import mix, seed_host
from hwal_torch.streams import read_whole
from hwal_torch.units import Unit


def read(
    loader: DataLoader[Any], reading: Reading, say: Callable[[str], None], tick: Callable[[], None] = lambda: None
) -> Iterator[Fed]:
    """Yields (unit, collated rows) for this rank. Raises ScriptError for a loader that cannot be cut.

    `tick` is called for each batch that is read only to come to the place where a run goes on.
    """
    if not isinstance(loader, DataLoader):
        raise ScriptError(
            f"rt.feed() takes a torch DataLoader, not a {type(loader).__name__}",
            hint="DataLoader(dataset, batch_size=GLOBAL_BATCH, shuffle=True)",
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return read_whole(loader, reading, say, tick)
    return _read_indexed(loader, reading)


# datasets with an index: only this rank's rows are read


def _read_indexed(loader: DataLoader[Any], reading: Reading) -> Iterator[Fed]:
    queued: deque[Unit] = deque()

    def cut() -> Iterator[list[int]]:
        units: list[Unit] = []
        before = 0  # rows of this pass
        batches = global_batches(loader, reading)
        if reading.regroups:
            batches = regrouped(batches, reading, len, lambda group: list(chain.from_iterable(group)))
        for number, indices in enumerate(batches):
            if number >= reading.skip:
                if not units or units[0].total != len(indices):  # nearly every batch is cut like the one before
                    units = reading.cut.units(len(indices), reading.train)
                for unit in units:
                    queued.append(unit)
                    chosen = indices[unit.low : unit.high]
                    if loader.num_workers:
                        yield Indices(chosen, [mix(reading.seed, before + row) for row in range(unit.low, unit.high)])
                        continue
                    if unit.part is not None:  # the loader reads these rows right after it gets their indices
                        seed_host(mix(reading.seed, number, unit.part))
                    yield chosen
            before += len(indices)

    dataset = SeededDataset(loader.dataset) if loader.num_workers else loader.dataset
    for data in each(rebuilt(loader, reading, dataset=dataset, batch_sampler=cut(), collate_fn=loader.collate_fn)):
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
    random state of the step serves instead, or that of a virtual rank."""

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
