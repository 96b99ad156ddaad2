"""Resuming at another world, under another strategy: the next loss, for all pairs of {single, ddp, fsdp:full} at worlds 1 to 4.

    python tests/bench/pairs.py [--worlds 1 2 3 4]

The suite's text job (variable lengths, tied weights, a schedule, AdamW, clipping) is saved after its fifth step, in the midst
of an epoch, once for each row; each column resumes it. A cell is the relative difference of the first loss after the resume
to that of the run that went on. The promise is 1e-6 (specs: P3).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from hwal.env import Settings
from hwal_torch.harness import run_world
from hwal_torch.suite.base import SAME, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import train

SAVED_AT = 5
TRIAL = Trial(text=True, epochs=None, steps=SAVED_AT + 2, save_at=SAVED_AT)


def ran(place: tuple[str, int], folder: Path, resume: str | None = None) -> list[float]:
    """The losses of a run, or of what is left of one."""
    strategy, world = place
    settings = Settings(precision="fp32", strategy=strategy, resume=resume)
    for outcome in run_world("cpu", world, train, TRIAL, run_dir=folder, settings=settings):
        if outcome.result is None:
            raise SystemExit(f"{strategy} at world {world}: {outcome}")
    return losses_of(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    several = [world for world in args.worlds if world > 1]
    places = [("single", 1)] * (1 in args.worlds) + [
        (strategy, world) for strategy in ("ddp", "fsdp:full") for world in several
    ]
    print(f"{'saved by | resumed by':22}" + "".join(f"{f'{strategy} {world}':>13}" for strategy, world in places), flush=True)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for number, saver in enumerate(places):
            before = Path(scratch) / str(number)
            next_loss = ran(saver, before)[SAVED_AT]
            print(f"{f'{saver[0]} {saver[1]}':22}", end="", flush=True)
            for other, resumer in enumerate(places):
                resumed = ran(resumer, Path(scratch) / f"{number}-{other}", resume=str(before))[0]
                difference = abs(resumed - next_loss) / abs(next_loss)
                worst = max(worst, difference)
                print(f"{difference:13.0e}", end="", flush=True)
            print(flush=True)
    print(f"largest {worst:.1e} of {len(places) ** 2} pairs{'' if worst <= SAME else f', over the promise of {SAME:.0e}'}")


if __name__ == "__main__":
    main()
