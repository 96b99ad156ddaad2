"""What a step costs over the loop written by hand: hwal beside Lightning Fabric and accelerate, in one interleaved run.

    python tests/bench/overhead.py [--rounds N] [--steps N]

Every contestant trains the same model on the same batches at world 1 without accumulation, clipping off, in fp32, on one
thread; they take turns, round by round, so that a noisy machine troubles all alike. Wall time and the main thread's own
CPU time are given, per step: the median over rounds, and the median of the differences to the hand-written loop.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HWAL_PROGRESS"] = "off"

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Round = Callable[[], None]


def model_and_optimizer(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())), nn.Linear(width, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def loader_of(steps: int, width: int, batch: int = 64) -> DataLoader[Any]:
    rows = steps * batch
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch, shuffle=True)


def by_hand(steps: int, width: int) -> Round:
    model, optimizer = model_and_optimizer(width)
    loader = loader_of(steps, width)

    def one_round() -> None:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return one_round


def with_hwal(steps: int, width: int) -> Round:
    import hwal

    os.environ["HWAL_OUT"] = str(Path(tempfile.mkdtemp()) / "run")
    os.environ["HWAL_DEVICE"] = "cpu"
    os.environ["HWAL_PRECISION"] = "fp32"
    rt = hwal.start()
    model, optimizer = rt.prepare(*model_and_optimizer(width))
    loader = loader_of(steps, width)

    def one_round() -> None:
        for x, y in rt.feed(loader):
            with rt.autocast():
                loss = nn.functional.mse_loss(model(x), y)
            rt.backward(loss)
            rt.step(optimizer)

    return one_round


def with_fabric(steps: int, width: int) -> Round:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    model, optimizer = fabric.setup(*model_and_optimizer(width))
    loader = fabric.setup_dataloaders(loader_of(steps, width))

    def one_round() -> None:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return one_round


def with_accelerate(steps: int, width: int) -> Round:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*model_and_optimizer(width), loader_of(steps, width))

    def one_round() -> None:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    return one_round


CONTESTANTS = {"by hand": by_hand, "hwal": with_hwal, "fabric": with_fabric, "accelerate": with_accelerate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=150, help="steps a round")
    parser.add_argument("--width", type=int, default=160, help="of the model; it sets the length of a step")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds = {name: make(args.steps, args.width) for name, make in CONTESTANTS.items()}
    wall: dict[str, list[float]] = {name: [] for name in rounds}
    thread: dict[str, list[float]] = {name: [] for name in rounds}
    for number in range(args.rounds + 2):
        for name, one_round in rounds.items():
            gc.collect()
            begun, begun_thread = perf_counter(), thread_time()
            one_round()
            if number >= 2:  # two to warm up
                wall[name].append((perf_counter() - begun) / args.steps * 1e6)
                thread[name].append((thread_time() - begun_thread) / args.steps * 1e6)
    print(f"{'':12}{'wall µs/step':>14}{'over by hand':>14}{'thread µs/step':>16}{'over by hand':>14}")
    for name in rounds:
        cells = []
        for times in (wall, thread):
            over = median(a - b for a, b in zip(times[name], times["by hand"], strict=True))
            cells += [median(times[name]), over]
        print(f"{name:12}{cells[0]:14.1f}{cells[1]:+14.1f}{cells[2]:16.1f}{cells[3]:+14.1f}")


if __name__ == "__main__":
    main()
