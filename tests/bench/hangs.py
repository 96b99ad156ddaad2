"""Every kind of hang and loss at world 2, again and again: seconds until the last rank has ended, and what was named.

    python tests/bench/hangs.py [--runs N] [--kinds KIND …]

The script is the runtime suite's (hwal_torch.suite.hangs), with --hang-timeout 2. Seconds count from the moment when a rank
hangs, less the timeout where it is one; from the moment when a rank is lost else. The harness looks five times a second.
"named" counts the runs in which rank 0 (rank 1 where 0 is the one) said exactly who it was, where, and how.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from hwal.env import Settings
from hwal_torch.harness import run_world
from hwal_torch.suite.hangs import GONE, SCRIPT, STUCK, TIMEOUT, expected, line_of, run_script

COLLECTIVE = "the ranks have waited for each other for"
KINDS: Mapping[str, float] = {**dict.fromkeys([*STUCK, "collective"], TIMEOUT), **dict.fromkeys(GONE, 0.0)}


def one(kind: str) -> tuple[float, str]:
    """Seconds until all had ended, and what rank 0 said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "stuck.py"
        script.write_text(SCRIPT, encoding="utf-8")
        settings = Settings(precision="fp32", hang_timeout=TIMEOUT)
        outcomes = run_world("cpu", 2, run_script, script, kind, run_dir=folder / "run", settings=settings)
        ended = time.time()
        begun = max(path.stat().st_mtime for path in (folder / "run").glob("hangs-*"))
        said = outcomes[0].error or (folder / "run" / "rank-0.txt").read_text(encoding="utf-8")
        return ended - begun - KINDS[kind], said


def pattern_of(kind: str) -> str:
    if kind == "collective":
        return f"{COLLECTIVE} .*rank 0 in rt.backward at stuck.py.*rank 1 in .* at stuck.py:{line_of('collective')}, in hang"
    return expected({**STUCK, **GONE}[kind], kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    args = parser.parse_args()
    print(f"{'':26}{'median s':>10}{'longest s':>11}{'named':>9}   said, the last time")
    for kind in args.kinds:
        runs = [one(kind) for _ in range(args.runs)]
        named = sum(bool(re.search(pattern_of(kind), said)) for _, said in runs)
        seconds = [took for took, _ in runs]
        last = re.search(r"(?:hwal: error|Error): (.*)", runs[-1][1])
        print(
            f"{kind:26}{median(seconds):10.1f}{max(seconds):11.1f}{named:5}/{args.runs:<3}   {last[1] if last else 'nothing'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
