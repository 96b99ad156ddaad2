"""A language model in plain torch: lines of text, padded to the longest of the batch, with a scheduler and evaluation.

python examples/train_lm.py
hwal train examples/train_lm.py --data notes.txt --steps 500
hwal train -n 2 examples/train_lm.py
"""

import argparse
import math
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hwal

VOCABULARY = 257  # the bytes, and END, which begins, ends and pads a line
END = 256
LONGEST = 127
PADDING = {0: END, 1: -100}  # of inputs and targets, on devices that want few lengths


class LanguageModel(nn.Module):
    def __init__(self, hidden: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Embedding(LONGEST + 1, hidden)
        block = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        states = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        return self.head(self.blocks(states, mask=mask, is_causal=True))


def read_lines(path: Path | None) -> list[Tensor]:
    text = path.read_text(encoding="utf-8") if path else "\n".join(topics.values())
    lines = [line.strip().encode()[:LONGEST] for line in text.splitlines()]
    return [torch.tensor([END, *line, END]) for line in lines if len(line) > 20]


def collate(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one batch; targets beyond a line's end are -100, which cross_entropy passes over."""
    inputs = pad_sequence([line[:-1] for line in lines], batch_first=True, padding_value=END)
    targets = pad_sequence([line[1:] for line in lines], batch_first=True, padding_value=-100)
    return inputs, targets


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss as (sum, count): lines differ in length, so a mean of means would weigh them wrongly."""
    logits = model(inputs)
    total = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return total, (targets != -100).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a text file (default: the help texts of Python)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    lines = read_lines(args.data)
    held_out = len(lines) // 20
    train_loader = DataLoader(lines[held_out:], batch_size=32, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(lines[:held_out], batch_size=64, collate_fn=collate)

    def schedule(step: int) -> float:
        return min((step + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * min(step / args.steps, 1)))

    with hwal.start() as rt:
        rt.unit = "tokens"
        with rt.scope():
            model = LanguageModel()
            optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)

        def evaluate() -> float:
            model.eval()
            total = count = 0
            with torch.no_grad():
                for inputs, targets in rt.feed(test_loader, train=False, pad=PADDING):
                    with rt.autocast():
                        loss, tokens = summed_loss(model, inputs, targets)
                    total, count = total + loss, count + tokens
            model.train()
            return rt.mean(total, count)

        for _ in rt.epochs(steps=args.steps):
            for inputs, targets in rt.feed(train_loader, pad=PADDING):
                with rt.autocast():
                    loss = summed_loss(model, inputs, targets)
                rt.backward(loss)
                if rt.step(optimizer, clip=1.0):
                    scheduler.step()
                    if rt.steps_done % args.eval_every == 0:
                        rt.log(eval_loss=evaluate())
        rt.save()


if __name__ == "__main__":
    main()
