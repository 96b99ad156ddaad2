"""curve.py's job with accelerate, by its guide to gradient accumulation: prepare(), accumulate(), split_batches.

Variant "tokens" follows that guide's section on samples of different lengths: losses are summed, and divided by the number
of tokens that all processes have in the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from job import GLOBAL_BATCH, SEED, LanguageModel, Notes, arguments, held_out_loss, loss_of, optimizer_of, tokens_in
from job import train_loader as loader_of

Logged = Iterator[float]


def plain(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, notes: Notes) -> Logged:
    """An epoch as the guide has it first; yields the logged loss of each global step."""
    losses = []
    for batch in loader:
        notes.saw(batch)
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean())
        if accelerator.sync_gradients:
            yield float(torch.stack(losses).mean())
            losses = []


def by_tokens(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, notes: Notes) -> Logged:
    """An epoch as the guide has it for samples of different lengths."""
    accumulation, world = accelerator.gradient_accumulation_steps, accelerator.num_processes
    batches = iter(loader)
    while group := list(islice(batches, accumulation)):
        count = int(accelerator.gather(sum(tokens_in(batch) for batch in group)).sum())
        losses = []
        for i, batch in enumerate(group):
            notes.saw(batch)
            last = i == len(group) - 1
            with nullcontext() if last or world == 1 else model.no_sync():
                loss = loss_of(model, batch, "sum") * accumulation * world / count
                accelerator.backward(loss)
                losses.append(loss.detach())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(accelerator.gather(torch.stack(losses).sum()).sum()) / (world * accumulation)


def main() -> None:
    args = arguments()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accumulation,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
    )
    set_seed(SEED)
    model = LanguageModel(args.dropout)
    loader = loader_of(GLOBAL_BATCH // args.accumulation)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), loader)
    notes = Notes(args.out, accelerator.process_index, args.steps)
    epoch = by_tokens if args.variant == "tokens" else plain
    while not notes.full:
        for loss in epoch(accelerator, model, optimizer, loader, notes):
            notes.stepped(loss, lambda: held_out_loss(accelerator.unwrap_model(model)))
            if notes.full:
                break
    notes.write()
    accelerator.end_training()


if __name__ == "__main__":
    main()
