"""What saving costs the training loop: asynchronous against synchronous rt.save(), beside torch.save and a bare copy.

    python tests/bench/saving.py [--rounds N] [--blocks N] [--width N]

One process trains a model of 100 M parameters with AdamW in fp32; its state is 12 bytes a parameter. In turn, each round: steps
without a save; rt.save(wait=True); rt.save(), with steps until the checkpoint is whole on disk; torch.save of the same state
into one file; a copy of every tensor, which is the least that an asynchronous save can take. Printed, as medians over rounds:
the time that the call holds up the main thread, and that thread's own CPU time in it, which a busy machine does not change;
the slowest step while the save is in flight, beside the median one without; all that the save added to the loop (the call,
and what the steps in flight took longer); and the time until it is whole.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

os.environ |= {"HWAL_PROGRESS": "off", "HWAL_DEVICE": "cpu", "HWAL_PRECISION": "fp32", "HWAL_KEEP": "last:1"}

import torch
from stack import Stack
from torch.utils.data import DataLoader, TensorDataset

import hwal

BATCH = 64
QUIET = 4  # steps of a round without a save


class Loop:
    """A training loop that takes one step a call."""

    def __init__(self, blocks: int, width: int) -> None:
        self.rt = hwal.start()
        with self.rt.scope():
            self.model = Stack(blocks, width)
            self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.rt.prepare(self.model, self.optimizer)
        self.batches = self.endless(DataLoader(TensorDataset(torch.randn(BATCH * 32, width)), batch_size=BATCH))

    def endless(self, loader: Any) -> Any:
        for _ in self.rt.epochs(10**9):
            yield from self.rt.feed(loader)

    def step(self) -> float:
        """Seconds of one step."""
        begun = perf_counter()
        (x,) = next(self.batches)
        self.rt.backward(self.model(x).pow(2).mean())
        self.rt.step(self.optimizer)
        return perf_counter() - begun

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        slots = [value for slot in self.optimizer.state.values() for value in slot.values()]
        return [*self.model.parameters(), *(value for value in slots if isinstance(value, torch.Tensor))]


def timed(call: Any) -> tuple[float, float, Any]:
    """Seconds of a call, the main thread's CPU seconds in it, and what it returned."""
    begun, begun_thread = perf_counter(), thread_time()
    result = call()
    return perf_counter() - begun, thread_time() - begun_thread, result


def in_flight(loop: Loop) -> tuple[float, float, list[float], float]:
    """An asynchronous save: seconds and CPU seconds of the call, seconds of each step until it is whole, and in all."""
    begun = perf_counter()
    *called, folder = timed(loop.rt.save)
    steps = []
    while not (folder / "hwal.json").exists():
        steps.append(loop.step())
    return *called, steps, perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    rows: dict[str, list[tuple[float, ...]]] = {}

    def note(name: str, *cells: float) -> None:
        rows.setdefault(name, []).append(cells)

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HWAL_OUT"] = f"{scratch}/run"
        loop = Loop(args.blocks, args.width)
        loop.step()  # the optimizer's state is made
        for number in range(args.rounds + 1):
            quiet = [loop.step() for _ in range(QUIET)]
            usual = median(quiet)
            whole, whole_cpu, _ = timed(lambda: loop.rt.save(wait=True))
            loop.step()
            called, called_cpu, steps, until = in_flight(loop)
            theirs, theirs_cpu, _ = timed(lambda: torch.save(loop.state(), Path(scratch) / "state.pt"))
            copied, copied_cpu, _ = timed(lambda: [tensor.clone() for tensor in loop.tensors()])
            if number:  # the first warms up
                note("no save", 0.0, 0.0, max(quiet), 0.0, 0.0)
                note("rt.save(wait=True)", whole, whole_cpu, usual, whole, whole)
                note("rt.save()", called, called_cpu, max([usual, *steps]), called + sum(steps) - usual * len(steps), until)
                note("torch.save", theirs, theirs_cpu, usual, theirs, theirs)
                note("copy", copied, copied_cpu, usual, copied, copied)
                note("usual", usual)
        size = sum(tensor.nbytes for tensor in loop.tensors())
        loop.rt.end()
    usual = median(cells[0] for cells in rows.pop("usual"))
    print(
        f"{args.blocks} blocks of width {args.width}: {size / 1e9:.2f} GB of state; the median step takes {usual * 1e3:.0f} ms"
    )
    print(f"{'ms':20}{'call':>9}{'its CPU':>9}{'slowest step':>14}{'in all':>9}{'until whole':>13}{'GB/s':>7}")
    for name, taken in rows.items():
        cells = [median(column) for column in zip(*taken, strict=True)]
        call, cpu, slowest, added, until = (cell * 1e3 for cell in cells)
        rate = f"{size / until / 1e6:7.1f}" if until else ""
        print(f"{name:20}{call:9.0f}{cpu:9.0f}{slowest:14.0f}{added:9.0f}{until:13.0f}{rate}")


if __name__ == "__main__":
    main()
