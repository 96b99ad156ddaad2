"""Documents in, windows of tokens out: what the recipe trains and evaluates on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hwal.errors import UsageError
from hwal_torch.tokenizer import END

HELD_OUT = 0.05  # the part of the text, its end, that is evaluated on and never trained on
HELD_OUT_WINDOWS = 512  # … but never more windows than this: an evaluation should stay short beside the training


def byte_tokens(texts: Sequence[bytes]) -> Tensor:
    """Every byte as a token, END after each document. Shape (tokens,), int16."""
    end = torch.tensor([END], dtype=torch.int16)
    return torch.cat([part for text in texts for part in (torch.frombuffer(bytearray(text), dtype=torch.uint8).short(), end)])


def tokenized(texts: Sequence[bytes], tokenizer: Any) -> Tensor:
    """The documents as a model's own tokens, its end-of-text token (where it has one) after each. Shape (tokens,), int32."""
    lists = tokenizer([text.decode("utf-8", errors="replace") for text in texts], add_special_tokens=False, verbose=False)[
        "input_ids"
    ]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return torch.tensor([token for tokens in lists for token in (*tokens, *end)], dtype=torch.int32)


class Windows(Dataset[Tensor]):
    """A stream of tokens cut into windows of `length` inputs and their targets: shape (length + 1,), int64.

    A window begins with the last target of the one before, so that every token but the first is predicted once.
    """

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.rows = tokens.unfold(0, length + 1, length)  # a view: nothing is copied

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index].long()

    def __getitems__(self, indices: list[int]) -> Tensor:
        """A whole batch at once, shape (batch, length + 1): DataLoader asks for it where it is there."""
        return self.rows[torch.tensor(indices)].long()


def stacked(rows: Tensor | Sequence[Tensor]) -> Tensor:
    """The collate function of Windows."""
    return rows if isinstance(rows, Tensor) else torch.stack(list(rows))


@dataclass(frozen=True)
class Corpus:
    """What a run trains on and what it is evaluated on; `tokens` are those of both."""

    train: Windows
    held_out: Windows
    tokens: int

    def __iter__(self) -> Iterator[Windows]:
        return iter((self.train, self.held_out))

    def loaders(self, batch: int) -> tuple[DataLoader[Tensor], DataLoader[Tensor]]:
        """DataLoaders of `batch` windows: the training one shuffled."""
        return (
            DataLoader(self.train, batch_size=batch, shuffle=True, collate_fn=stacked),
            DataLoader(self.held_out, batch_size=batch, collate_fn=stacked),
        )


def split(tokens: Tensor, length: int) -> Corpus:
    """Windows of `length` inputs to train on, and from the end of the text to evaluate on. Raises UsageError if too short."""
    needed = 2 * (length + 1)
    if len(tokens) < needed:
        raise UsageError(
            f"the text is too short: {len(tokens):,} tokens",
            where=f"--seq-len {length}",
            why=f"{length} + 1 tokens to train on and {length} + 1 to evaluate on are {needed:,}",
            hint=f"--seq-len {len(tokens) // 2 - 1}, or more text" if len(tokens) >= 4 else "more text",
        )
    held_out = max(length + 1, min(int(len(tokens) * HELD_OUT), HELD_OUT_WINDOWS * length + 1))
    return Corpus(Windows(tokens[:-held_out], length), Windows(tokens[-held_out:], length), len(tokens))
