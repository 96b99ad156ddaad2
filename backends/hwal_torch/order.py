"""In which order samples are read: a function of (seed, epoch) alone, the same on every rank."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from hwal.errors import ScriptError
from hwal_torch.reading import Reading
from hwal_torch.seeding import mix, seeded


def global_batches(loader: DataLoader[Any], reading: Reading) -> Iterator[list[int]]:
    """The indices of each global batch of this pass, the same on every rank."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        if reading.global_batch is not None:
            raise ScriptError(
                "--global-batch cannot override a batch sampler of the script's own",
                where="rt.feed",
                hint="leave it out, and change the sampler's own batch size",
            )
        yield from map(list, _under_seed(batch_sampler, reading.seed))
        return
    size = reading.global_batch or batch_sampler.batch_size
    order = iter(order_of(batch_sampler.sampler, reading.seed, size))
    while batch := list(islice(order, size)):
        if len(batch) == size or not batch_sampler.drop_last:
            yield batch


def order_of(sampler: Any, seed: int, at_once: int = 1) -> Iterable[int]:
    """Sample indices in this pass's order. A plain RandomSampler is replaced by a permutation of (seed, epoch); `at_once`
    are drawn together from a sampler without length."""
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
    return _under_seed(sampler, seed, at_once)


def _under_seed(sampler: Any, seed: int, at_once: int = 1) -> Iterator[Any]:
    """Iterates a sampler of the user's with random state that depends on `seed` alone, and leaves everyone else's alone."""
    for part in _within(sampler):
        if hasattr(part, "set_epoch"):
            part.set_epoch(seed & 0x7FFFFFFF)
        for value in vars(part).values() if hasattr(part, "__dict__") else ():
            if isinstance(value, torch.Generator):
                value.manual_seed(seed)
            elif isinstance(value, random.Random):
                value.seed(seed)
    if hasattr(sampler, "__len__"):
        with seeded(seed):
            everything = list(sampler)
        yield from everything
        return
    with seeded(seed):
        iterator = iter(sampler)
    for number in count():  # it may never end: every few are drawn under a seed of their own
        with seeded(mix(seed, number)):
            items = list(islice(iterator, at_once))
        yield from items
        if len(items) < at_once:
            return


def _within(sampler: Any) -> list[Any]:
    """A sampler, and those that it draws from in its turn."""
    found: list[Any] = []
    waiting = [sampler]
    while waiting:
        part = waiting.pop()
        if not any(part is other for other in found):
            found.append(part)
            held = vars(part).values() if hasattr(part, "__dict__") else ()
            waiting += [value for value in held if isinstance(value, Sampler)]
    return found
