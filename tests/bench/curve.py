"""The same curve: worlds × accumulation at one global batch, against one process without accumulation.

    python tests/bench/curve.py [--steps N] [--worlds 1 2 3 4] [--accumulation 1 2 4] [--contestants NAME …]

The job (curves/job.py) is a language model on lines of different lengths whose number the global batch does not divide, in
fp32 with AdamW and clipping. Each contestant is a script of its own, written as its documentation says, and runs as real
processes over gloo. Printed for each cell: the largest relative difference of the loss on held-out lines, taken every ten
steps (one measure for all, so of the model itself), with a * where some step trained on other samples than one process did;
then the same for the loss that each script logs, and in how many steps of all cells the samples were the same. The first
line is what rounding alone does: the loop by hand, with the rows of every batch turned round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from curves.start import GLOBAL_BATCH, Curve, hwal, largest_difference, peer

Contestant = Callable[[Path, int, int, int], Curve]


def with_hwal(strategy: str, out: Path, world: int, accumulation: int, steps: int) -> Curve:
    flags = ["--strategy", strategy if world > 1 else "single", "--micro-batch", str(GLOBAL_BATCH // (world * accumulation))]
    return hwal(out, world, ["--steps", str(steps)], *flags)


def with_peer(name: str, variant: str, out: Path, world: int, accumulation: int, steps: int) -> Curve:
    script = ["--steps", str(steps), "--accumulation", str(accumulation), "--variant", variant]
    return peer(name, out, world, script)


CONTESTANTS: dict[str, Contestant] = {
    "hwal ddp": partial(with_hwal, "ddp"),
    "hwal fsdp:full": partial(with_hwal, "fsdp:full"),
    "accelerate": partial(with_peer, "accelerate", ""),
    "accelerate, tokens": partial(with_peer, "accelerate", "tokens"),
    "fabric": partial(with_peer, "fabric", ""),
    "fabric, sampler": partial(with_peer, "fabric", "sampler"),
}


def same_samples(curve: Curve, one: Curve) -> int:
    """In how many steps both trained on the same samples, each as often."""
    return sum(a == b for a, b in zip(curve.samples, one.samples, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    args = parser.parse_args()
    cells = [(world, a) for world in args.worlds for a in args.accumulation if (world, a) != (1, 1)]
    print(f"{args.steps} steps of {GLOBAL_BATCH} lines; world × accumulation, against 1 × 1; * other samples than there")
    print(
        f"{'held-out loss':20}" + "".join(f"{f'{world}×{a}':>9}" for world, a in cells) + f"{'logged':>9}  same samples",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        by_hand = [
            with_peer("hand", variant, Path(scratch) / "hand" / variant, 1, 1, args.steps)
            for variant in ("as it is", "reversed")
        ]
        print(f"{'rounding alone':20}{largest_difference(by_hand[1].held_out, by_hand[0].held_out):9.0e}", flush=True)
        for name in args.contestants:
            run = CONTESTANTS[name]
            one = run(Path(scratch) / name / "one", 1, 1, args.steps)
            print(f"{name:20}", end="", flush=True)
            logged, same = 0.0, 0
            for world, a in cells:
                curve = run(Path(scratch) / name / f"{world}-{a}", world, a, args.steps)
                alike = same_samples(curve, one)
                star = "" if alike == args.steps else "*"
                print(f"{f'{largest_difference(curve.held_out, one.held_out):.0e}{star}':>9}", end="", flush=True)
                logged, same = max(logged, largest_difference(curve.losses, one.losses)), same + alike
            print(f"{logged:9.0e}  {same} of {args.steps * len(cells)}", flush=True)


if __name__ == "__main__":
    main()
