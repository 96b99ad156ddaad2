"""Memory per rank of ddp, fsdp:full and fsdp:grad-op against theory, with AdamW in fp32: 16 bytes a parameter.

    python tests/bench/memory.py [--worlds 2 4] [--blocks N] [--width N]

The model is a stack of blocks, each a unit of FSDP; batches are tiny, so that activations do not count. Theory:

    ddp           16 P                      P parameters, their gradients, AdamW's two moments
    fsdp:full     16 P / W + 8 U            and one unit's parameters and gradients in whole (U: the largest)
    fsdp:grad-op  16 P / W + 4 P + 4 U      parameters stay gathered from forward to backward

"tensors" are the bytes of a rank's own parameters, gradients and optimizer state before a step; "resident" and "peak" are
anonymous memory after the last step, and the most resident in it (VmHWM, reset before it), over what the process held before
the model was built. The worst rank counts. MALLOC_MMAP_THRESHOLD_ gives freed memory back at once: malloc's hoard is no need.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"

import torch
from stack import MIB, Stack, forget_the_peak, status
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from hwal.env import Settings
from hwal.runtime import TorchRuntime
from hwal_torch.harness import run_world
from hwal_torch.shards import local

STEPS = 3


def bytes_of(tensors: list[Any]) -> int:
    """Bytes of this rank's parts; gradients may be views of one bucket."""
    storages = {s.data_ptr(): s.nbytes() for s in (local(t).untyped_storage() for t in tensors if isinstance(t, Tensor))}
    return sum(storages.values())


def train(rt: TorchRuntime, blocks: int, width: int) -> dict[str, int]:
    """A few steps on one rank; returns parameters of the model and of its largest unit, and bytes."""
    anonymous, resident = status("RssAnon", "VmRSS")
    with rt.scope():
        model = Stack(blocks, width)
        optimizer = torch.optim.AdamW(model.parameters())
    sizes = {"P": sum(p.numel() for p in model.parameters()), "U": sum(p.numel() for p in model.blocks[0].parameters())}
    rt.prepare(model, optimizer)
    rows = rt.world_size * 2
    loader = DataLoader(TensorDataset(torch.randn(rows * STEPS, width)), batch_size=rows)
    tensors = 0
    for (x,) in rt.feed(loader):
        if rt.steps_done == STEPS - 1:
            forget_the_peak()
        rt.backward(model(x).pow(2).mean())
        parameters = list(model.parameters())
        state = [value for slots in optimizer.state.values() for value in slots.values()]
        tensors = bytes_of([*parameters, *(p.grad for p in parameters), *state])
        rt.step(optimizer)
    after, peak = status("RssAnon", "VmHWM")
    return {**sizes, "tensors": tensors, "resident": after - anonymous, "peak": peak - resident}


def theory(strategy: str, world: int, parameters: int, unit: int) -> float:
    if strategy == "ddp":
        return 16 * parameters
    return 16 * parameters / world + (8 * unit if strategy == "fsdp:full" else 4 * parameters + 4 * unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    args = parser.parse_args()
    print(
        f"{'MiB per rank':14}{'world':>6}{'theory':>9}{'tensors':>9}{'resident':>10}{'peak':>9}{'peak/theory':>13}", flush=True
    )
    with tempfile.TemporaryDirectory() as scratch:
        for world in args.worlds:
            for strategy in ("ddp", "fsdp:full", "fsdp:grad-op"):
                folder, settings = Path(scratch) / f"{world}-{strategy}", Settings(precision="fp32", strategy=strategy)
                outcomes = run_world("cpu", world, train, args.blocks, args.width, run_dir=folder, settings=settings)
                if failed := [outcome for outcome in outcomes if outcome.result is None]:
                    raise SystemExit(f"{strategy} at world {world}: {failed[0]}")
                ranks = [outcome.result for outcome in outcomes]
                tensors, resident, peak = (max(rank[name] for rank in ranks) / MIB for name in ("tensors", "resident", "peak"))
                expected = theory(strategy, world, ranks[0]["P"], ranks[0]["U"]) / MIB
                print(
                    f"{strategy:14}{world:6}{expected:9.0f}{tensors:9.0f}{resident:10.0f}{peak:9.0f}{peak / expected:13.2f}",
                    flush=True,
                )
        print(f"{ranks[0]['P'] / 1e6:.1f} M parameters, {ranks[0]['U'] / 1e6:.1f} M in the largest unit")


if __name__ == "__main__":
    main()
