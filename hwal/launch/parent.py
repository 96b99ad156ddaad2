"""The parent of a run: starts its processes, passes signals on, ends what does not end, and reports the first failure.

What it starts is torch's own launcher, as a program (hwal_torch.torchrun, the agent), which starts the ranks; or, where the
micro-batch of a single process is searched for, the worker itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from hwal.display import tell
from hwal.env import PROCESSES, RUN_DIR, STATE_DIR
from hwal.errors import OutputError
from hwal.launch import outcome
from hwal.launch.attempts import Attempts, searches
from hwal.launch.conclusion import End, conclude
from hwal.launch.folder import drop_empty
from hwal.launch.lifeline import AGENT, LAUNCHER, leave_pid
from hwal.launch.overdue import Failed, Overdue
from hwal.launch.signals import Signals
from hwal.launch.word import read_beats
from hwal.preempt import END, blocked
from hwal.values import Command, Launch
from hwal.watch import stacks

TICK = 0.2  # seconds between two looks at the signals


def run(launch: Launch, environ: Mapping[str, str]) -> int:
    """Returns 0, 75 when the ranks saved and stopped, else the code that the first failing rank's error stands for."""
    (command,) = launch.commands
    alone = launch.engine == "direct"
    logs = Path(command.env[RUN_DIR]) / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        state_dir = Path(tempfile.mkdtemp(prefix="hwal-"))
        leave_pid(state_dir, LAUNCHER)
        if alone:  # the worker's parent is this process
            leave_pid(state_dir, AGENT)
    except OSError as error:
        what = error.filename or "a temporary folder"
        raise OutputError(f"cannot write {what}: {error.strerror}", hint="free space, or another --out or TMPDIR") from None
    command = replace(command, env={**command.env, STATE_DIR: str(state_dir)})
    if not alone:
        _say(f"rank 0 prints here, the others write {logs / 'rank-N.log'}")
    starts = Attempts(logs.parent)
    searching = searches(command, environ)
    try:
        with Signals() as signals:
            while True:
                starts.begin()
                end = _Start(starts.command(command), environ, state_dir, signals, alone).wait()
                told = _again(starts, state_dir, end) if searching and end.code != 0 and not signals.count else None
                if told is None:
                    break
                _say(told)
                outcome.clear(state_dir)
            size = int(command.env.get(PROCESSES) or 0) or None
            return conclude(end, size, {**environ, **command.env}, state_dir, logs, starts.killed())
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
        for folder in (logs, logs.parent):
            drop_empty(folder)


def _again(starts: Attempts, state_dir: Path, end: End) -> str | None:
    exits = (end.failure or outcome.read_failure(state_dir) or outcome.Failure()).exits
    return starts.again(exits, outcome.read_outcomes(state_dir), outcome.read_ended(state_dir))


class _Start:
    """One start of a run. The agent has a session of its own, so that the launcher alone takes what a terminal sends; a worker
    that is `alone` keeps the terminal, for Ctrl-C and input() in its script."""

    def __init__(self, command: Command, environ: Mapping[str, str], state_dir: Path, signals: Signals, alone: bool) -> None:
        self._state_dir = state_dir
        self._environ = {**environ, **command.env}
        self._signals = signals
        self._alone = alone
        self._own_session = not alone and sys.platform != "win32"
        with blocked() if alone else nullcontext():  # the worker takes them when it can
            self._process = subprocess.Popen(
                command.argv,
                env=self._environ,
                stdin=None if alone else subprocess.DEVNULL,
                start_new_session=self._own_session,
            )

    def wait(self) -> End:
        try:
            return self._wait()
        except BaseException:
            self._kill()
            raise

    def _wait(self) -> End:
        signals, failed = self._signals, Failed(self._state_dir)
        overdue = Overdue(time.monotonic(), self._environ)
        none_there = announced = False
        while (code := self._ended()) is None:
            ranks = outcome.read_outcomes(self._state_dir)
            failed.look(ranks, now := time.monotonic())
            name = signals.name
            if signals.count > 1:
                _say(f"{name} again: ends all ranks now")
                return End(self._kill(), name, twice=True)
            if signals.first is None:
                if any(rank.alone for rank in ranks.values()):  # the others would wait for it
                    signals.pass_on(ranks, signal.SIGTERM, self._state_dir)
            elif not ranks and not self._alone:
                if not none_there:
                    none_there = True
                    self._process.send_signal(END)  # it ends the ranks that it is just starting
            elif not none_there:
                if not announced:
                    announced = True
                    _say(f"{name}: passed on to the ranks, which save and end; once more ends them at once")
                signals.pass_on(ranks, signals.first, self._state_dir)
            doom = overdue.look(ranks, read_beats(self._state_dir), name, now)
            if doom is not None:
                return End(self._kill(), name, none_there, doom=doom)
        failure = outcome.Failure((outcome.Exit(0, self._process.pid, code, time.time()),)) if self._alone and code else None
        return End(code, signals.name, none_there, failure=failure)

    def _ended(self) -> int | None:
        """The exit code; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(TICK)
        return None

    def _kill(self) -> int:
        """Ends the agent and every rank, with all that they started: each leads a process group of its own."""
        ranks = outcome.read_outcomes(self._state_dir).values()
        running = [rank.pid for rank in ranks if rank.ended is None and rank.lives]
        for pid in (self._process.pid, *running):  # the agent first, so that it restarts nobody
            with suppress(ProcessLookupError, PermissionError):
                if sys.platform == "win32":
                    os.kill(pid, signal.SIGTERM)
                elif self._own_session:
                    os.killpg(pid, signal.SIGKILL)
                else:
                    stacks.kill(pid)
        return self._process.wait()


def _say(text: str) -> None:
    tell(f"hwal: {text}")
