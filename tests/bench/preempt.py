"""Signals at random moments of a run at world 2, from its start-up to its end: what was saved, and what came of it.

    python tests/bench/preempt.py [--signals N] [--whom hwal rank] [--seed S]

One run after another gets one signal, SIGTERM or SIGUSR1, at a random moment: N times hwal itself, N times one of its
ranks. The script trains, evaluates after each epoch and saves now and then; its loader has workers. Then the run goes on
until it is done. "saved": hwal returned 75; "nothing to save": 1, the signal came before a step was done; "done": 0, it came
too late; "itself": it came before hwal could take any, and ended it as it ends any program. "lost": how many steps that had
been done the next start did again, at the most; "orphans": processes of the run that were left when hwal had returned;
"curve": the largest relative difference of a loss to that of a run which nothing happened to. A line of metrics.jsonl that is
missing, or there twice, ends the bench. The promise is 0 or 1 step and no orphan (specs: P4).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED

LAST = 24
ENDS = ("saved", "nothing to save", "done", "itself")
SCRIPT = f"""
import time, torch, hwal
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(62, 6, generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index], self.x[index].sum().sin()
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        rt.prepare(model, optimizer, scheduler)
        loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=1)
        for epoch in rt.epochs({LAST // 8}):
            for x, y in rt.feed(loader):
                rt.backward(torch.nn.functional.mse_loss(model(x).squeeze(1), y))
                if rt.step(optimizer) and rt.steps_done % 5 == 0:
                    rt.save()
                time.sleep(0.08)
            scheduler.step()
            total = count = 0
            for x, y in rt.feed(loader, train=False):
                total, count = total + float((model(x).squeeze(1) - y).square().sum()), count + len(y)
                time.sleep(0.08)
            rt.log(error=rt.mean(total, count))
            time.sleep(0.1)
if __name__ == "__main__":
    main()
"""


@dataclass
class Tally:
    """What became of the runs."""

    ends: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    lost: int = 0
    orphans: int = 0
    curve: float = 0.0

    def row(self, whom: str) -> str:
        cells = "".join(f"{self.ends[end]:17}" for end in ENDS)
        return f"{whom:12}{cells}{self.resumed:9}{self.lost:6}{self.orphans:9}{self.curve:9.0e}"


class Job:
    """A run in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.scratch = folder, folder / "run", folder / "tmp"
        self.scratch.mkdir()
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")

    def start(self) -> subprocess.Popen[bytes]:
        saved = any(self.out.glob("checkpoints/step-*"))
        if not saved:
            shutil.rmtree(self.out, ignore_errors=True)
        argv = [sys.executable, "-m", "hwal", "train", "--device", "cpu", "-n", "2", "--precision", "fp32", "--out", "run"]
        environ = {**os.environ, "TMPDIR": str(self.scratch), "HWAL_PROGRESS": "off", "OMP_NUM_THREADS": "1"}
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(
                [*argv, *(["--resume"] if saved else []), "train.py"],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def finish(self) -> float:
        """Runs it to its end; returns the seconds that this took."""
        begun = time.monotonic()
        if (code := self.start().wait(300)) != EXIT_OK:
            raise SystemExit(f"it did not go on, exit code {code}:\n{self.said()}")
        return time.monotonic() - begun

    def said(self) -> str:
        return (self.folder / "said.txt").read_text(encoding="utf-8", errors="replace")

    def pid_of(self, rank: int) -> int | None:
        for path in self.scratch.glob(f"hwal-*/rank-{rank}.json"):
            with suppress(OSError, ValueError):
                return int(json.loads(path.read_text(encoding="utf-8"))["pid"])
        return None

    def lines(self) -> list[dict[str, float]]:
        try:
            text = (self.out / "metrics.jsonl").read_text(encoding="utf-8")
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def saved(self) -> int:
        return max((int(path.name.partition("-")[2]) for path in self.out.glob("checkpoints/step-*")), default=0)

    def left_over(self) -> list[int]:
        """Processes that have this run's temporary folder in their environment."""
        mark, found = f"TMPDIR={self.scratch}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes() and "\nState:\tZ" not in (entry / "status").read_text():
                        found.append(int(entry.name))
        return found


def one(job: Job, whom: str, seconds: float, draw: random.Random, tally: Tally) -> None:
    """A run that gets one signal."""
    process = job.start()
    rank = draw.randrange(2)
    if whom == "rank":  # its time begins when it has said that it is there
        while job.pid_of(rank) is None and process.poll() is None:
            time.sleep(0.005)
        seconds *= 0.7
    time.sleep(draw.uniform(0.0, seconds))
    pid = process.pid if whom == "hwal" else job.pid_of(rank)
    if process.poll() is None and pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, draw.choice((signal.SIGTERM, signal.SIGUSR1)))
    code = process.wait(300)
    names = {EXIT_PREEMPTED: "saved", EXIT_FAILED: "nothing to save", EXIT_OK: "done"}
    tally.ends[names.get(code, "itself")] += 1
    if code not in names and code not in (-signal.SIGTERM, -signal.SIGUSR1):
        raise SystemExit(f"exit code {code}:\n{job.said()}")
    tally.orphans += len(job.left_over())
    done = max((line["step"] for line in job.lines()), default=0)
    if code == EXIT_FAILED and done:
        raise SystemExit(f"steps were done, and nothing saved:\n{job.said()}")
    if code != EXIT_OK:
        tally.lost = max(tally.lost, int(done) - job.saved())
        job.finish()
        tally.resumed += 1


def run(whom: str, signals: int, seed: int) -> Tally:
    draw, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "whole").mkdir()
        whole = Job(Path(name) / "whole")
        seconds = whole.finish()
        losses = [line["loss"] for line in whole.lines()]
        for number in range(signals):
            folder = Path(name) / str(number)
            folder.mkdir()
            job = Job(folder)
            one(job, whom, seconds, draw, tally)
            lines = job.lines()
            if [line["step"] for line in lines] != list(range(1, LAST + 1)) or sum(
                "error" in line for line in lines
            ) != LAST // 8:
                raise SystemExit(f"lines are missing, or there twice: {lines}\n{job.said()}")
            differences = [abs(line["loss"] - loss) / abs(loss) for line, loss in zip(lines, losses, strict=True)]
            tally.curve = max(tally.curve, *differences)
            if number % 10 == 9 and number + 1 < signals:
                print(tally.row(f"… of {number + 1}"), file=sys.stderr, flush=True)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--whom", nargs="+", choices=["hwal", "rank"], default=["hwal", "rank"])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{'signals to':12}" + "".join(f"{end:>17}" for end in ENDS) + f"{'resumed':>9}{'lost':>6}{'orphans':>9}{'curve':>9}")
    for whom in args.whom:
        print(run(whom, args.signals, args.seed).row(whom), flush=True)


if __name__ == "__main__":
    main()
