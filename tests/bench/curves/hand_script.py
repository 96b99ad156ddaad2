"""curve.py's job as a loop by hand, on one process. Variant "reversed" turns the rows of every batch round.

That changes nothing but the order in which numbers are added up: what rounding alone does to this job.
"""

from __future__ import annotations

import torch
from job import GLOBAL_BATCH, SEED, LanguageModel, Notes, arguments, collate, held_out_loss, loss_of, optimizer_of
from job import train_loader as loader_of
from torch import nn


def main() -> None:
    args = arguments()
    torch.manual_seed(SEED)
    model = LanguageModel(args.dropout)
    optimizer = optimizer_of(model)
    turn = -1 if args.variant == "reversed" else 1
    loader = loader_of(GLOBAL_BATCH, collate=lambda samples: collate(samples[::turn]))
    notes = Notes(args.out, 0, args.steps)
    while not notes.full:
        for batch in loader:
            notes.saw(batch)
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            notes.stepped(float(loss.detach()), lambda: held_out_loss(model))
            if notes.full:
                break
    notes.write()


if __name__ == "__main__":
    main()
