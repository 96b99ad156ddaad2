"""How fast the linter is: lines per CPU second in one process, beside TorchFix and pylint, and a second run.

    python tests/bench/lint_speed.py TREE [--others PYTHON]

TREE is a folder of Python files, an installed Keras say. PYTHON is an interpreter whose environment has torchfix and pylint;
without it they are left out. CPU seconds are those of the process and its children.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYLINT = ["-m", "pylint", "--score=n", "--disable=all", "--enable=E", "--recursive=y"]


def cpu(command: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """CPU seconds and wall seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--others", metavar="PYTHON", help="an interpreter with torchfix and pylint")
    given = parser.parse_args()
    lines = sum(len(path.read_bytes().splitlines()) for path in given.tree.rglob("*.py"))
    print(f"{given.tree}: {lines:,} lines")
    with tempfile.TemporaryDirectory() as cache:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        lint = [sys.executable, "-m", "hwal", "lint", "--no-config", "--statistics", "--jobs", "1", str(given.tree)]
        cold, _ = cpu(lint, environ)
        _, warm = cpu(lint, environ)
    print(f"hwal lint  {cold:7.2f} CPU s  {lines / cold:9,.0f} lines a CPU second   second run {warm:.2f} s")
    if given.others:
        for name, arguments in (("torchfix", ["-m", "torchfix", "--select", "ALL"]), ("pylint", PYLINT)):
            used, _ = cpu([given.others, *arguments, str(given.tree)], dict(os.environ))
            print(f"{name:<10} {used:7.2f} CPU s  {lines / used:9,.0f} lines a CPU second   {used / cold:.1f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
