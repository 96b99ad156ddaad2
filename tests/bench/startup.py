"""Start-up of the command line against a bare interpreter, interleaved.

    python tests/bench/startup.py [--rounds N]

The goal is at most 6 times `python -c pass` (specs: P8). Compiled files are allowed, as an installed package has them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
GOAL = 6.0


def commands(script: str) -> dict[str, list[str]]:
    return {
        "python -c pass": ["-c", "pass"],
        "hwal --help": ["-m", "hwal", "--help"],
        "hwal devices": ["-m", "hwal", "devices"],
        "hwal devices --json": ["-m", "hwal", "devices", "--json"],
        "hwal train --dry-run": ["-m", "hwal", "train", "--dry-run", script],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends")])}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        environ["PYTHONPYCACHEPREFIX"] = folder
        script = Path(folder) / "script.py"
        script.write_text("import torch\nimport hwal\n", encoding="utf-8")
        times: dict[str, list[float]] = {name: [] for name in commands(str(script))}
        for number in range(args.rounds + 2):
            for name, argv in commands(str(script)).items():
                begun = perf_counter()
                subprocess.run([sys.executable, *argv], env=environ, cwd=folder, capture_output=True, check=True)
                if number >= 2:  # the first writes the compiled files
                    times[name].append((perf_counter() - begun) * 1e3)
    bare = median(times["python -c pass"])
    for name, taken in times.items():
        ratio = median(taken) / bare
        print(f"{name:22} {median(taken):6.1f} ms  {ratio:4.1f} x{'' if ratio <= GOAL else '  over the goal of 6'}")


if __name__ == "__main__":
    main()
