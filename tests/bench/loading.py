"""Memory while a model of 1 GB is resumed, in one process and under fsdp:full at world 2, against one copy and two.

    python tests/bench/loading.py [--blocks N] [--width N] [--optimizer]

The model is built in rt.scope() and restored by rt.prepare(). Printed, for the worst rank, in MiB and in copies of what it
holds in the end: the most anonymous memory (RssAnon, looked at every millisecond) over what the process held before, and
the most resident at all (VmHWM), in which pages of the file count that the kernel can take back. Beside it, the usual way by
hand: build the model, load the file, load_state_dict. --optimizer restores AdamW's state besides: three copies of the
weights in all.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed memory is given back at once

import torch
from stack import MIB, Stack, forget_the_peak, sampled_peak, status
from torch.utils.data import DataLoader, TensorDataset

from hwal.env import Settings
from hwal.runtime import TorchRuntime
from hwal_torch.harness import run_world
from hwal_torch.shards import local

Sizes = tuple[int, int]  # blocks, width
Taken = tuple[int, int, int]  # bytes: held in the end, peak of RssAnon, peak of VmRSS


def saved(rt: TorchRuntime, sizes: Sizes, optimizer: bool) -> str:
    """Saves the model, after one step where its optimizer is wanted."""
    with rt.scope():
        model = Stack(*sizes)
        optimizers = [torch.optim.AdamW(model.parameters())] if optimizer else []
    rt.prepare(model, *optimizers)
    for (x,) in rt.feed(DataLoader(TensorDataset(torch.randn(1, sizes[1])))) if optimizer else ():
        rt.backward(model(x).pow(2).mean())
        rt.step(optimizers[0])
    return str(rt.save(wait=True))


def resumed(rt: TorchRuntime, sizes: Sizes, optimizer: bool) -> Taken:
    """What one rank took to resume it."""
    anonymous, resident = status("RssAnon", "VmRSS")
    forget_the_peak()
    with sampled_peak() as peak:
        with rt.scope():
            model = Stack(*sizes)
            optimizers = [torch.optim.AdamW(model.parameters())] if optimizer else []
        rt.prepare(model, *optimizers)
    tensors = [*model.parameters(), *(v for o in optimizers for slots in o.state.values() for v in slots.values())]
    held = sum(local(tensor).nbytes for tensor in tensors)
    return held, peak.bytes - anonymous, status("VmHWM")[0] - resident


def by_hand(rt: TorchRuntime, sizes: Sizes, folder: str) -> Taken:
    """The weights alone, read as a script would without hwal."""
    from safetensors.torch import load_file

    anonymous, resident = status("RssAnon", "VmRSS")
    forget_the_peak()
    with sampled_peak() as peak:
        model = Stack(*sizes)
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    held = sum(parameter.nbytes for parameter in model.parameters())
    return held, peak.bytes - anonymous, status("VmHWM")[0] - resident


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=1616)
    parser.add_argument("--optimizer", action="store_true")
    args = parser.parse_args()
    sizes = (args.blocks, args.width)
    with tempfile.TemporaryDirectory() as scratch:

        def results(world: int, task, *rest, strategy: str = "auto", resume: str | None = None) -> list:
            settings = Settings(precision="fp32", strategy=strategy, resume=resume)
            name = f"{world}-{task.__name__}"
            outcomes = run_world("cpu", world, task, sizes, *rest, run_dir=Path(scratch) / name, settings=settings)
            if failed := [outcome for outcome in outcomes if outcome.result is None]:
                sys.exit(f"{name}: {failed[0]}")
            return [outcome.result for outcome in outcomes]

        (folder,) = results(1, saved, args.optimizer)
        rows = {
            "hwal, one process": results(1, resumed, args.optimizer, resume=folder),
            "hwal, fsdp:full at 2": results(2, resumed, args.optimizer, strategy="fsdp:full", resume=folder),
            "by hand, weights": results(1, by_hand, folder),
        }
    print(f"{'':22}{'held MiB':>10}{'RssAnon peak':>14}{'copies':>8}{'VmHWM':>9}{'copies':>8}")
    for name, ranks in rows.items():
        held, anonymous, resident = (max(rank[i] for rank in ranks) for i in range(3))
        cells = f"{held / MIB:10.0f}{anonymous / MIB:14.0f}{anonymous / held:8.2f}{resident / MIB:9.0f}{resident / held:8.2f}"
        print(f"{name:22}{cells}")


if __name__ == "__main__":
    main()
