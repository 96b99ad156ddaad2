"""A small training script that saves at one step: text of different lengths, tied weights, AdamW and a schedule."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hwal

VOCABULARY = 17


class Net(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        block = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save-at", type=int, default=0)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(1)
    lines = [torch.randint(1, VOCABULARY, (4 + row % 7,), generator=generator) for row in range(30)]
    loader = DataLoader(lines, batch_size=8, shuffle=True, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))  # type: ignore[arg-type]
    with hwal.start() as rt:
        with rt.scope():
            model = Net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        rt.prepare(model, optimizer, scheduler)
        for _ in rt.epochs(steps=12):
            for tokens in rt.feed(loader):
                target = tokens[:, 1:]
                total = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")
                rt.backward((total, (target != 0).sum()))
                if rt.step(optimizer, clip=1.0):
                    scheduler.step()
                    if rt.steps_done == args.save_at:
                        rt.save()


if __name__ == "__main__":
    main()
