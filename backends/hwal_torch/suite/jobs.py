"""The jobs that the suite trains: data sets, loaders and models, small and deterministic."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)

FEATURES = 6
VOCABULARY = 13


@dataclass(frozen=True)
class Trial:
    """One training job of the suite.

    Attributes:
        rows: samples in the data set. batch: the global batch. epochs, steps: as rt.epochs().
        text: variable-length sequences with a (sum, count) loss, in place of fixed rows with a mean.
        loader: "map", "stream", "weighted" (a sampler of the user's), "batched" (its own batch sampler), "whole" (the
            data set makes the batches), "endless" (a sampler without length) or "shuffled" (a stream that draws its own order).
        feeds: how often an epoch reads the loader.
        noise: added to every row as it is read, by a shuffled stream's collate function too. dropout: in the model. blocks:
            residual blocks in it, in place of two layers.
        save_at, stop_at: the step after which to save, or to receive SIGTERM. nan_at: the step whose loss is no number, on
            rank nan_on alone where that is given.
    """

    rows: int = 26
    batch: int = 8
    epochs: int | None = 3
    steps: int | None = None
    text: bool = False
    loader: str = "map"
    workers: int = 0
    feeds: int = 1
    noise: float = 0.0
    dropout: float = 0.0
    blocks: int = 0
    clip: float | None = 1.0
    optimizer: str = "adamw"
    save_at: int | None = None
    stop_at: int | None = None
    nan_at: int | None = None
    nan_on: int | None = None


class Rows(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """(id, features, target), all a function of the id."""

    def __init__(self, rows: int, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.noise = noise
        self.x = torch.randn(rows, FEATURES, generator=generator)
        self.y = torch.tanh(self.x @ torch.randn(FEATURES, 1, generator=generator)) + torch.randn(rows, 1, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index] + self.noise * torch.randn(FEATURES), self.y[index]


class Text(Dataset[tuple[int, torch.Tensor]]):
    """(id, tokens) of 3 to 9 tokens."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(6)
        self.tokens = [torch.randint(1, VOCABULARY, (3 + row * 5 % 7,), generator=generator) for row in range(rows)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.tokens[index]


class Stream(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in range(len(self.dataset)))


class Shuffled(IterableDataset[Any]):
    """A stream in an order that it draws, its rows dealt out to the loader's workers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        waiting = list(range(first, len(self.dataset), step))
        while waiting:
            yield self.dataset[waiting.pop(random.randrange(len(waiting)))]


class Endless(Sampler[int]):
    """Draws forever, and so has no length."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(self.rows, ()))


class Whole(Dataset[Any]):
    """Whole batches, made by the data set."""

    def __init__(self, dataset: Any, batch: int, collate: Any) -> None:
        self.dataset, self.batch, self.collate = dataset, batch, collate

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch)

    def __getitem__(self, index: int) -> Any:
        rows = range(index * self.batch, min((index + 1) * self.batch, len(self.dataset)))
        return self.collate([self.dataset[row] for row in rows])


class Pairs(Sampler[list[int]]):
    """Batches that a sampler of the script's makes of another one, which has a generator of its own."""

    def __init__(self, inner: Sampler[int], batch: int) -> None:
        self.inner, self.batch = inner, batch

    def __len__(self) -> int:
        return -(-len(self.inner) // self.batch)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(self.inner)
        while batch := list(islice(order, self.batch)):
            yield batch


def pad(samples: list[Any]) -> Any:
    """Rows are stacked; token sequences padded with 0 to the longest."""
    ids = torch.tensor([sample[0] for sample in samples])
    if len(samples[0]) == 3:
        return ids, torch.stack([sample[1] for sample in samples]), torch.stack([sample[2] for sample in samples])
    return ids, nn.utils.rnn.pad_sequence([sample[1] for sample in samples], batch_first=True)


@dataclass(frozen=True)
class Noisy:
    """Collates, and adds noise to the rows."""

    noise: float

    def __call__(self, samples: list[Any]) -> Any:
        ids, x, y = pad(samples)
        return ids, x + self.noise * torch.from_numpy(numpy.random.randn(*x.shape)).float(), y


def loader_of(trial: Trial) -> DataLoader[Any]:
    """The loader that a trial names, with the global batch as its batch size."""
    dataset: Any = Text(trial.rows) if trial.text else Rows(trial.rows, trial.noise)
    common: dict[str, Any] = {"collate_fn": pad, "num_workers": trial.workers}
    if trial.loader == "stream":
        return DataLoader(Stream(dataset), batch_size=trial.batch, **common)
    if trial.loader == "shuffled":
        noisy = {"collate_fn": Noisy(trial.noise)} if trial.noise else {}
        return DataLoader(Shuffled(dataset), batch_size=trial.batch, **{**common, **noisy})
    if trial.loader == "endless":
        return DataLoader(dataset, batch_size=trial.batch, sampler=Endless(trial.rows), **common)
    if trial.loader == "weighted":
        sampler = WeightedRandomSampler([1.0 + row % 3 for row in range(trial.rows)], trial.rows)
        return DataLoader(dataset, batch_size=trial.batch, sampler=sampler, **common)
    if trial.loader == "batched":
        starts = range(0, trial.rows, trial.batch)
        batches = [list(range(start, min(start + trial.batch, trial.rows))) for start in starts]
        return DataLoader(dataset, batch_sampler=batches, **common)
    if trial.loader == "nested":
        inner = RandomSampler(dataset, generator=torch.Generator().manual_seed(7))
        return DataLoader(dataset, batch_sampler=Pairs(inner, trial.batch), **common)
    if trial.loader == "whole":
        return DataLoader(Whole(dataset, trial.batch, pad), batch_size=None, num_workers=trial.workers)
    return DataLoader(dataset, batch_size=trial.batch, shuffle=True, **common)


class Block(nn.Module):
    """A residual block with a number of its own, which no strategy can cut."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width + 1), nn.Linear(2 * width + 1, width)
        self.dropout = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.dropout(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    """A regression on rows, or a next-token model on text whose head is tied to its embedding."""

    def __init__(self, text: bool, dropout: float, idle: bool = False, blocks: int = 0) -> None:
        super().__init__()
        width = 16
        if idle:
            self.idle = nn.Linear(width, width)
        layers = [nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, width)]
        self.inner = nn.Sequential(*([Block(width, dropout) for _ in range(blocks)] or layers))
        self.embed = nn.Embedding(VOCABULARY, width) if text else nn.Linear(FEATURES, width)
        self.head = nn.Linear(width, VOCABULARY, bias=False) if text else nn.Linear(width, 1)
        if text:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embed(x)))


def loss_of(model: nn.Module, batch: Any) -> Any:
    """The mean over rows, or (sum, count) over the tokens that are not padding."""
    if len(batch) == 3:
        return functional.mse_loss(model(batch[1]), batch[2])
    tokens = batch[1]
    target = tokens[:, 1:]
    logits = model(tokens[:, :-1])
    total = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")
    return total, (target != 0).sum()
