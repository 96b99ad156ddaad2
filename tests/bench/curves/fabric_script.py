"""curve.py's job with Lightning Fabric, by its guide: setup(), setup_dataloaders(), no_backward_sync().

The epoch's end steps on what was accumulated by then, which the guide leaves to the script. Variant "sampler" gives one
process a DistributedSampler too, so that the order of samples is the same at every world; without it setup_dataloaders
puts one in place only where there are several processes.
"""

from __future__ import annotations

import os

import torch
from job import GLOBAL_BATCH, SEED, LanguageModel, Notes, arguments, datasets, held_out_loss, loss_of, optimizer_of
from job import train_loader as loader_of
from lightning_fabric import Fabric
from torch.utils.data import DistributedSampler


def main() -> None:
    args = arguments()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", precision="32-true")
    fabric.launch()
    fabric.seed_everything(SEED)
    model = LanguageModel(args.dropout)
    model, optimizer = fabric.setup(model, optimizer_of(model))
    batch_size = GLOBAL_BATCH // (world * args.accumulation)
    if args.variant == "sampler":
        sampler = DistributedSampler(datasets()[0], world, fabric.global_rank, seed=SEED)  # type: ignore[arg-type,var-annotated]
        loader = fabric.setup_dataloaders(loader_of(batch_size, sampler=sampler), use_distributed_sampler=False)
    else:
        loader = fabric.setup_dataloaders(loader_of(batch_size))
    notes = Notes(args.out, fabric.global_rank, args.steps)
    epoch = 0
    while not notes.full:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        losses = []
        for number, batch in enumerate(loader, 1):
            notes.saw(batch)
            accumulating = number % args.accumulation != 0 and number != len(loader)
            with fabric.no_backward_sync(model, enabled=accumulating and world > 1):
                loss = loss_of(model, batch)
                fabric.backward(loss / args.accumulation)
            losses.append(loss.detach())
            if accumulating:
                continue
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            logged = float(fabric.all_reduce(torch.stack(losses).mean()))
            notes.stepped(logged, lambda: held_out_loss(model.module))
            losses = []
            if notes.full:
                break
        epoch += 1
    notes.write()


if __name__ == "__main__":
    main()
