"""Dropout at worlds 1 to 4: `--virtual-ranks 12` and `--deterministic` against one process, and what they cost.

    python tests/bench/virtual.py [--steps N] [--worlds 1 2 3 4] [--rounds N]

The job is curve.py's with dropout 0.1. First table: the largest relative difference of the training loss to world 1 (without
virtual ranks it is dropout that differs), and under --deterministic whether all losses and the last weights are equal to the
bit. Second table: milliseconds of the median step, by world and in turn, with the ratio to the same world's step without
virtual ranks. Every process has one thread.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from curves.start import Curve, hwal, largest_difference

FLAGS = {
    "plain": (),
    "--virtual-ranks 12": ("--virtual-ranks", "12"),
    "--deterministic": ("--virtual-ranks", "12", "--deterministic"),
}


def run(out: Path, world: int, steps: int, variant: str, flags: tuple[str, ...]) -> Curve:
    return hwal(out, world, ["--steps", str(steps), "--dropout", "0.1", "--variant", variant], *flags)


def compared(curve: Curve, one: Curve, to_the_bit: bool) -> str:
    if not to_the_bit:
        return f"{largest_difference(curve.losses, one.losses):.0e}"
    return "equal" if curve.losses == one.losses and {*curve.weights} == {*one.weights} else "DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=3, help="of the timing")
    args = parser.parse_args()
    others = [world for world in args.worlds if world > 1]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        print(f"{f'{args.steps} steps, dropout 0.1':24}" + "".join(f"{f'world {world}':>12}" for world in others), flush=True)
        for name, flags in FLAGS.items():
            print(f"{name:24}", end="", flush=True)
            one = run(folder / f"{name}-1", 1, args.steps, "weights", flags)
            for world in others:
                curve = run(folder / f"{name}-{world}", world, args.steps, "weights", flags)
                print(f"{compared(curve, one, '--deterministic' in flags):>12}", end="", flush=True)
            print()
        print(f"\n{'ms a step':24}" + "".join(f"{f'world {world}':>17}" for world in args.worlds), flush=True)
        times: dict[tuple[str, int], list[float]] = {(name, world): [] for name in FLAGS for world in args.worlds}
        for number in range(args.rounds):
            for (name, world), taken in times.items():
                curve = run(folder / f"timed-{name}-{world}-{number}", world, args.steps, "timed", FLAGS[name])
                taken.append(median(curve.seconds) * 1e3)
        for name in FLAGS:
            pairs = [(median(times[name, world]), median(times["plain", world])) for world in args.worlds]
            print(f"{name:24}" + "".join(f"{f'{own:.1f} ({own / plain:.2f}×)':>17}" for own, plain in pairs))


if __name__ == "__main__":
    main()
