"""Real runs of `hwal train` for tests: scripts, their processes, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ENV = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'backends'}", "OMP_NUM_THREADS": "1", "HWAL_PROGRESS": "off"}

JOIN = """
import os, sys, time, torch, hwal
def main():
    with hwal.start() as rt:
        print("rank", rt.rank, "of", rt.world_size, "process", os.getpid(), flush=True)
        total = torch.ones(1)
        if rt.world_size > 1:
            torch.distributed.all_reduce(total)
        os.write(1, f"total {{int(total)}}\\n".encode())  # in one piece, beside another rank's
        {body}
if __name__ == "__main__":
    main()
"""
LOOP = """
import os, time, torch, hwal
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        model, optimizer = rt.prepare(model, optimizer)
        data = torch.utils.data.DataLoader([torch.ones(4)] * 16, batch_size=8)
        for epoch in rt.epochs(100000):
            for x in rt.feed(data):
                rt.backward(model(x).mean())
                rt.step(optimizer)
                time.sleep(0.01)
                if rt.steps_done == 3:
                    print("rank", rt.rank, "process", os.getpid(), "trains", flush=True)
if __name__ == "__main__":
    main()
"""


class Started(subprocess.Popen[str]):
    """A process in a session of its own; what it and its ranks print goes into a file."""

    def __init__(self, argv: list[str], folder: Path, environ: dict[str, str]) -> None:
        self.output = folder / f"said-{time.monotonic_ns()}.txt"
        with self.output.open("w") as file:
            super().__init__(
                argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in self.said or self.poll() is not None)
        assert text in self.said, self.said


class Run:
    """`hwal train …` of a script in a folder of its own."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.out = folder / "run"
        (folder / "train.py").write_text(script)
        self.tmp = Path(tempfile.mkdtemp(prefix="hwal-run-"))  # short: Unix sockets of a loader's workers lie within

    def popen(self, *flags: str, **env: str) -> Started:
        return self.program([sys.executable, "-m", "hwal", "train", *flags, "--out", "run", "train.py"], **env)

    def program(self, argv: list[str], **env: str) -> Started:
        return Started(argv, self.folder, {**os.environ, **ENV, "TMPDIR": str(self.tmp), **env})

    def __call__(self, *flags: str, **env: str) -> tuple[int, str]:
        return finish(self.popen(*flags, **env))

    def log(self, rank: int) -> str:
        path = self.out / "logs" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def pids(self) -> dict[int, int]:
        """Rank -> its process, as it told hwal."""
        words = (json.loads(path.read_text()) for path in self.tmp.glob("hwal-*/rank-*.json"))
        return {word["rank"]: word["pid"] for word in words}

    def steps(self) -> list[int]:
        """The steps in metrics.jsonl."""
        return [json.loads(line)["step"] for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    def left_over(self) -> list[str]:
        """Processes that have this run's folder as their working directory, or in their environment."""
        mark = f"TMPDIR={self.tmp}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    ours = (entry / "cwd").readlink() == self.folder or mark in (entry / "environ").read_bytes()
                    if ours and "\nState:\tZ" not in (entry / "status").read_text():
                        found.append(entry.name)
                except OSError:
                    continue
        return found


def finish(process: Started, limit: float = 200) -> tuple[int, str]:
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return code, process.said


def wait_for(condition: Callable[[], object], limit: float = 30) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
