"""feed: what each rank of a world reads of a loader."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hwal.errors import ScriptError
from hwal_torch.feed import read
from hwal_torch.reading import Reading
from hwal_torch.units import Cut


class Numbers(Dataset[int]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, by = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.rows, by))


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("row 5")
        return index


class BrokenStream(Stream):
    def __iter__(self) -> Iterator[int]:
        return iter([0, 1, Broken(8)[5]])


class Batches(IterableDataset[Any]):
    """Whole batches of these sizes, beside a tensor without rows and a name."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        first = 0
        for size in self.sizes:
            yield {"id": torch.arange(first, first + size), "scale": torch.tensor(2.0), "name": "here"}
            first += size


def feeds(loader: DataLoader[Any], world: int, train: bool = False, **how: Any) -> list[list[Any]]:
    """What each rank gets of a loader."""
    equal, micro = how.pop("equal", True), how.pop("micro", None)
    return [
        [data for _, data in read(loader, Reading(Cut(rank, world, micro, equal=equal), 3, train, **how), lambda _: None)]
        for rank in range(world)
    ]


def ids(rank: list[torch.Tensor]) -> list[int]:
    return [i for batch in rank for i in batch.tolist()]


LOADERS = {
    "map": lambda rows, batch: DataLoader(Numbers(rows), batch_size=batch),
    "stream": lambda rows, batch: DataLoader(Stream(rows), batch_size=batch),
    "batches": lambda rows, batch: DataLoader(
        Numbers(rows), batch_sampler=[[*range(i, min(i + batch, rows))] for i in range(0, rows, batch)]
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
@given(rows=st.integers(0, 20), batch=st.integers(1, 7), world=st.integers(1, 5), micro=st.none() | st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_an_evaluation_in_step(kind: str, rows: int, batch: int, world: int, micro: int | None) -> None:
    loader = LOADERS[kind](rows, batch)
    if 0 < rows < world:
        with pytest.raises(ScriptError, match=f"an evaluation of {rows} row"):
            feeds(loader, world, micro=micro)
        return
    ranks = feeds(loader, world, micro=micro)
    assert sorted(i for rank in ranks for i in ids(rank)) == list(range(rows))
    assert len({len(rank) for rank in ranks}) == 1
    assert all(len(forward) for rank in ranks for forward in rank)


def test_an_evaluation_in_step_of_a_stream_with_workers() -> None:
    ranks = feeds(DataLoader(Stream(9), batch_size=4, num_workers=2), 3)  # batches of 4, 4 and 1 row
    assert sorted(i for rank in ranks for i in ids(rank)) == list(range(9))
    assert [len(rank) for rank in ranks] == [2, 2, 2]


def test_an_evaluation_in_step_of_whole_batches() -> None:
    loader = DataLoader(Batches(4, 1, 1, 5, 2), batch_size=None)
    ranks = feeds(loader, 3)
    seen = [[batch["id"].tolist() for batch in rank] for rank in ranks]
    assert seen == [[[0], [4, 5, 6]], [[1], [7, 8, 9]], [[2, 3], [10, 11, 12]]]
    assert all(batch["scale"] == 2.0 and batch["name"] == "here" for rank in ranks for batch in rank)


class Widths(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.zeros(1, 2), torch.zeros(1, 3))


def test_whole_batches_that_cannot_be_joined() -> None:
    with pytest.raises(ScriptError, match="cannot be joined"):
        feeds(DataLoader(Widths(), batch_size=None), 2)


@pytest.mark.parametrize("kind", [Broken, BrokenStream])
def test_an_error_in_a_worker_ends_the_others(kind: type[Any]) -> None:
    """The error holds on to what was reading; workers that outlive it are waited for at the process's end."""
    with pytest.raises(ValueError, match="row 5") as caught:
        list(read(DataLoader(kind(8), batch_size=2, num_workers=2), Reading(Cut(), 0, True), print))
    assert caught.tb is not None and not multiprocessing.active_children()
