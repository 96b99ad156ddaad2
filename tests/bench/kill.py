"""SIGKILL at random moments of saving: a run that is killed and resumed again and again never loses a checkpoint.

    python tests/bench/kill.py [--kills N] [--seed N]

The run (tests/torch/kills.py) saves after every step without waiting. After each kill, of all processes or of one, the newest
good checkpoint must be at least the last that the script knew to be whole, and the next life must begin with the very bits of
weights and optimizer state that were saved there. A fifth of the kills hit two processes under fsdp:full.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.torch.kills import kill_again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lost = 0
    with tempfile.TemporaryDirectory() as scratch:
        sharded = args.kills // 5
        for strategy, size, count in (("single", 1, args.kills - sharded), ("fsdp:full", 2, sharded)):
            kills = list(kill_again(Path(scratch) / strategy, count, strategy, size, args.seed))
            lost += sum(kill.lost for kill in kills)
            within = sum(kill.within for kill in kills)
            steps = kills[-1].found if kills else 0
            print(
                f"{strategy}, {size} process(es): {count} kills in {steps} steps, {within} while a checkpoint was in the making"
            )
    print(f"lost {lost}")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
