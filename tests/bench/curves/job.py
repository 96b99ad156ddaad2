"""The job that every contestant of curve.py trains: lines of text of different lengths, whose number the batch does not divide.

Model, data, loss and optimizer are the same for all; each script adds what its library's documentation says to add.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

VOCABULARY, END, LONGEST = 257, 256, 40  # the bytes, and END, which begins, ends and pads a line
GLOBAL_BATCH = 48  # divides by 1 to 4 processes with 1, 2 or 4 micro-batches each, and by 12 virtual ranks
ROWS = 5 * GLOBAL_BATCH + 21  # an epoch ends with a batch that divides by nothing
HELD_OUT = 96
EVERY = 10  # steps between evaluations
SEED = 42

Sample = tuple[int, Tensor]
Batch = tuple[Tensor, Tensor, Tensor]


class LanguageModel(nn.Module):
    def __init__(self, dropout: float = 0.0, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Embedding(LONGEST + 1, hidden)
        block = nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, dropout=dropout, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        states = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.head(self.blocks(states, mask=mask, is_causal=True))


def collate(samples: list[Sample]) -> Batch:
    """(ids, inputs, targets); targets beyond a line's end are -100, which cross_entropy passes over."""
    ids, lines = zip(*samples, strict=True)
    inputs = pad_sequence([line[:-1] for line in lines], batch_first=True, padding_value=END)
    targets = pad_sequence([line[1:] for line in lines], batch_first=True, padding_value=-100)
    return torch.tensor(ids), inputs, targets


def datasets() -> tuple[list[Sample], list[Sample]]:
    """The lines to train on and those held out, each with its number."""
    lines = [line.strip().encode()[:LONGEST] for line in "\n".join(topics.values()).splitlines()]
    samples = [(i, torch.tensor([END, *line, END])) for i, line in enumerate(line for line in lines if len(line) > 3)]
    return samples[:ROWS], samples[ROWS : ROWS + HELD_OUT]


def train_loader(batch: int, sampler: Any = None, collate: Callable[[list[Sample]], Batch] = collate) -> DataLoader[Any]:
    """A loader of the lines to train on, in random order unless a sampler is given."""
    return DataLoader(datasets()[0], batch, shuffle=sampler is None, sampler=sampler, collate_fn=collate)  # type: ignore[arg-type]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # At 1e-3 this job is chaotic: after 100 steps a difference of the last bit doubles every 20, with any library or none.
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def loss_of(model: nn.Module, batch: Batch, reduction: str = "mean") -> Tensor:
    _, inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction=reduction)


def tokens_in(batch: Batch) -> Tensor:
    return (batch[2] != -100).sum()


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """One measure of the model for every contestant: its mean loss over all tokens of the held-out lines, without dropout."""
    training = model.training
    model.eval()
    loss = float(loss_of(model, collate(datasets()[1])))
    model.train(training)
    return loss


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="the folder for each rank's notes")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches on each rank")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--variant", default="", help="the script's own")
    return parser.parse_args()


class Notes:
    """What a rank notes of each global step: the samples it trained on, the loss that its script logs, the held-out loss."""

    def __init__(self, out: Path, rank: int, steps: int) -> None:
        self.path = out / f"rank-{rank}.json"
        self.steps = steps
        self.weights = ""
        self.lines: list[dict[str, Any]] = []
        self.ids: list[int] = []

    def saw(self, batch: Batch) -> None:
        self.ids += batch[0].tolist()

    def stepped(self, loss: float | None, held_out: Callable[[], float]) -> None:
        step = len(self.lines) + 1
        self.lines.append({"ids": self.ids, "loss": loss, "held_out": held_out() if step % EVERY in (0, 1) else None})
        self.ids = []

    @property
    def full(self) -> bool:
        return len(self.lines) >= self.steps

    def ended(self, model: nn.Module) -> None:
        """Notes the weights, for a comparison to the bit."""
        tensors = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
        self.weights = hashlib.sha256(b"".join(tensors)).hexdigest()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"steps": self.lines, "weights": self.weights}), encoding="utf-8")
