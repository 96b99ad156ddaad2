"""What the watch over hangs costs: the main thread's own time a step, with it and without, and the watchdog's thread.

    python tests/bench/watching.py [--rounds N] [--steps N]

Both train the same model on the same batches at world 1 without accumulation, in fp32 on one thread, in turns round by round.
The main thread's own CPU time counts: the median over rounds, and the median and least of the differences. The watchdog's
thread is asked for its CPU time as well: it looks once a second, and holds the interpreter's lock meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

os.environ["HWAL_PROGRESS"] = "off"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from overhead import Round, loader_of, model_and_optimizer
from torch import nn

from hwal.starting import begin


class Unwatched:
    """In place of a pulse and a watchdog: nothing."""

    def leave(self, error: BaseException | None) -> None:
        return


def contestant(watched: bool, steps: int, width: int) -> Round:
    import hwal_torch.runtime as shared

    own = shared.watch
    if not watched:
        shared.watch = lambda rt, store: Unwatched()  # type: ignore[assignment,return-value]
    environ = {"HWAL_DEVICE": "cpu", "HWAL_PRECISION": "fp32", "HWAL_OUT": str(Path(tempfile.mkdtemp()) / "run")}
    rt: Any = begin("torch", {**os.environ, **environ})
    shared.watch = own
    model, optimizer = rt.prepare(*model_and_optimizer(width))
    loader = loader_of(steps, width)

    def one_round() -> None:
        for x, y in rt.feed(loader):
            with rt.autocast():
                loss = nn.functional.mse_loss(model(x), y)
            rt.backward(loss)
            rt.step(optimizer)

    return one_round


def stores() -> float:
    """Microseconds of what a micro-batch stores in its pulse, the fastest of many."""
    from timeit import repeat

    from hwal.watch.pulse import Pulse

    setup = "A, B = 'training', 'data'"
    return (
        min(repeat("pulse.count += 1; pulse.phase = A; pulse.phase = B", setup, globals={"pulse": Pulse()}, number=10**5)) * 10
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=300, help="steps a round")
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds = {name: contestant(name == "watched", args.steps, args.width) for name in ("unwatched", "watched")}
    took: dict[str, list[float]] = {name: [] for name in rounds}
    begun = time.monotonic()
    for number in range(args.rounds + 2):
        for name, one_round in rounds.items():
            gc.collect()
            start = thread_time()
            one_round()
            if number >= 2:
                took[name].append((thread_time() - start) / args.steps * 1e6)
    seconds = time.monotonic() - begun
    over = [a - b for a, b in zip(took["watched"], took["unwatched"], strict=True)]
    for name, times in took.items():
        print(f"{name:12}{median(times):8.1f} µs of the main thread a step (least {min(times):.1f})")
    print(f"difference  {median(over):8.1f} µs; of the least {min(took['watched']) - min(took['unwatched']):.1f}")
    print(f"stores      {stores():8.3f} µs a micro-batch")
    (dog,) = (thread for thread in threading.enumerate() if thread.name == "hwal-watchdog")
    assert dog.ident is not None
    spent = time.clock_gettime(time.pthread_getcpuclockid(dog.ident))
    print(f"watchdog    {spent / seconds * 1e6:8.1f} µs of its thread a second")


if __name__ == "__main__":
    main()
