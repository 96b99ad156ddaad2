"""A run that is killed again and again while it saves, and goes on each time: what it had been told was whole must be there.

`kill_again` does it; a test of a few kills and a bench of many use it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hwal.checkpoint import Checkpoints
from hwal.env import Settings
from hwal_torch.harness import CONTEXT, _rank, free_port, plan_for
from hwal_torch.shards import whole

PATIENCE = 120.0  # seconds for a process to come up
WIDTH = 256


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        reported: the step of the last checkpoint that the script had been told is whole. found: of the newest good one.
        resumed: whether the next process went on from that one, with the same bits. within: whether a checkpoint was in
            the making when the kill came.
    """

    reported: int
    found: int
    resumed: bool
    within: bool

    @property
    def lost(self) -> bool:
        return self.found < self.reported or not self.resumed


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of every bit of the weights and of the optimizer's state, whatever each rank holds of them."""
    digest = sha256()
    state = [value for slots in optimizer.state.values() for value in slots.values()]
    for tensor in [*model.state_dict().values(), *state]:
        digest.update(whole(tensor.detach()).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def save_all_the_time(rt: Any, log: str) -> None:
    """Saves after every step, every third time twice. Notes what it resumed, what it saves, and what it knows to be whole."""
    with rt.scope():
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rt.prepare(model, optimizer)

    def note(word: str, step: int, text: str = "") -> None:
        if rt.is_main:
            with Path(log).open("a") as file:
                file.write(f"{word} {step} {text}\n")

    def now() -> str:
        return fingerprint(model, optimizer)

    note("resumed", rt.steps_done, now())
    for _ in rt.epochs(10**9):
        for (x,) in rt.feed(DataLoader(TensorDataset(torch.randn(32, WIDTH)), batch_size=8)):
            rt.backward(model(x).square().mean())
            if not rt.step(optimizer):
                continue
            step = rt.steps_done
            note("saves", step, now())
            rt.save()  # returns when the one before is whole
            note("whole", step - 1)
            if step % 3 == 0:
                rt.save()
                note("whole", step)


def steps_told(path: Path) -> set[int]:
    """The steps that have a whole line in metrics.jsonl."""
    texts = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return {json.loads(text)["step"] for text in texts}


def kill_again(folder: Path, count: int, strategy: str = "single", size: int = 1, seed: int = 0) -> Iterator[Kill]:
    """Starts the run `count` times, kills it at a random moment of a save each time, and looks at what is left."""
    draw = random.Random(seed)
    log = folder / "log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    store = Checkpoints(folder / "run" / "checkpoints")
    found: int | None = None
    before: tuple[int, int, bool] | None = None
    for _ in range(count + 1):
        begun = len(lines(log))
        answers = CONTEXT.Queue()  # nobody reads it, but it must be there as long as the ranks are
        processes = start(folder / "run", strategy, size, found is not None, str(log), answers)
        try:
            wait_for(log, "resumed", begun, 1, processes)
            if before is not None:
                yield Kill(*before[:2], came_back(log, before[1]), before[2])
            wait_for(log, "saves", begun, draw.randint(2, 4), processes)
            time.sleep(draw.uniform(0, 0.06))
            within = any(path.suffix == ".tmp" for path in store.folder.iterdir())
            victims = processes if draw.random() < 0.7 else [draw.choice(processes)]
            for process in victims:
                os.kill(process.pid, signal.SIGKILL)
        finally:
            end(processes)
        reported = max((int(step) for word, step, *_ in lines(log) if word == "whole"), default=0)
        newest = store.newest(print)
        found = newest[1].position.step if newest is not None else 0
        gaps = set(range(1, found + 1)) - steps_told(folder / "run" / "metrics.jsonl")
        assert not gaps, f"a checkpoint of step {found}, and no line of steps {sorted(gaps)}"
        before = reported, found, within
        leftovers = [path.name for path in store.folder.iterdir() if path.name.startswith(".")]
        assert not leftovers, leftovers


def start(run_dir: Path, strategy: str, size: int, resume: bool, log: str, answers: Any) -> list[Any]:
    settings = Settings(precision="fp32", strategy=strategy, resume=str(run_dir) if resume else None, seed=1)
    backend, plan = plan_for("cpu", size, settings)
    run_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes = []
    for rank in range(size):
        place = (backend, plan, settings, rank, size, port, run_dir, save_all_the_time, (log,), answers)
        processes.append(CONTEXT.Process(target=_rank, args=place))
        processes[-1].start()
    return processes


def end(processes: list[Any]) -> None:
    """The others of a world notice that one is gone, and end; not all do at once."""
    for process in processes:
        process.join(20)
        if process.is_alive():
            with suppress(ProcessLookupError):
                process.kill()
            process.join()


def lines(log: Path) -> list[list[str]]:
    """The notes that are whole."""
    return [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def wait_for(log: Path, word: str, begun: int, count: int, processes: list[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while sum(note[0] == word for note in lines(log)[begun:]) < count:
        assert all(process.is_alive() for process in processes), "the run ended by itself"
        assert time.monotonic() < deadline, f"no {word} within {PATIENCE:g} s"
        time.sleep(0.001)


def came_back(log: Path, step: int) -> bool:
    """Whether the last process went on from that step, with the bits that had been saved there."""
    notes = lines(log)
    resumed = [note for note in notes if note[0] == "resumed"][-1]
    saved = [note for note in notes if note[0] == "saves" and int(note[1]) == step]
    return int(resumed[1]) == step and (step == 0 or saved[-1][2] == resumed[2])
