"""curve.py's job with hwal. Processes, strategy and accumulation (`--micro-batch`) are flags of `hwal train`.

Variant "timed" evaluates nothing between the steps, "weights" notes the weights in the end (of a model that is not sharded).
"""

from __future__ import annotations

import torch
from job import GLOBAL_BATCH, HELD_OUT, LanguageModel, Notes, arguments, collate, datasets, loss_of, optimizer_of, tokens_in
from job import train_loader as loader_of
from torch.utils.data import DataLoader

import hwal


def main() -> None:
    args = arguments()
    loader = loader_of(GLOBAL_BATCH)
    held_out = DataLoader(datasets()[1], batch_size=HELD_OUT, collate_fn=collate)  # type: ignore[arg-type]
    with hwal.start() as rt:
        with rt.scope():
            model = LanguageModel(args.dropout)
            optimizer = optimizer_of(model)
        model, optimizer = rt.prepare(model, optimizer)
        notes = Notes(args.out, rt.rank, args.steps)

        def evaluate() -> float:
            model.eval()
            total = count = 0
            with torch.no_grad():
                for batch in rt.feed(held_out, train=False):
                    total, count = total + loss_of(model, batch, "sum"), count + tokens_in(batch)
            model.train()
            return rt.mean(total, count)

        for _ in rt.epochs(steps=args.steps):
            for batch in rt.feed(loader):
                notes.saw(batch)
                rt.backward((loss_of(model, batch, "sum"), tokens_in(batch)))
                if rt.step(optimizer, clip=1.0):
                    # the loss is in metrics.jsonl
                    notes.stepped(None, evaluate if args.variant != "timed" else lambda: 0.0)
        if args.variant == "weights":
            notes.ended(model)
        notes.write()


if __name__ == "__main__":
    main()
