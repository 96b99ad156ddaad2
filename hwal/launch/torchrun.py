"""torchrun: starts hwal_torch.torchrun (torch's own launcher, as a program), passes signals on, reports the first failure."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from hwal.env import PROCESSES, RUN_DIR, STATE_DIR
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, EXIT_USAGE, OutputError
from hwal.launch import outcome
from hwal.launch.build import TEMPORARY
from hwal.launch.lifeline import LAUNCHER, leave_pid
from hwal.values import Command, Launch

TICK = 0.2  # seconds between two looks at the signals
GRACE = 3.0  # seconds that ranks have to end by themselves once one has failed; torchrun alone gives them 30
ECHO = 0.5  # seconds in which a second signal is the same one: a wrapper passes on what the terminal sent to both
STOPS = ("SIGTERM", "SIGINT", "SIGUSR1")


def run(launch: Launch, environ: Mapping[str, str]) -> int:
    """Returns 0, 75 when the ranks saved and stopped, else the code that the first failing rank's error stands for."""
    (command,) = launch.commands
    logs = Path(command.env[RUN_DIR]) / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        given = launch.state_dir not in (None, TEMPORARY)
        state_dir = Path(launch.state_dir if given and launch.state_dir else tempfile.mkdtemp(prefix="hwal-"))
        leave_pid(state_dir, LAUNCHER)
    except OSError as error:
        raise OutputError(f"cannot make {error.filename}: {error.strerror}", hint="choose another --out or TMPDIR") from None
    command = replace(command, env={**command.env, STATE_DIR: str(state_dir)})
    _say(f"rank 0 prints here, the others write {logs / 'rank-N.log'}")
    try:
        with _Signals() as signals:
            code = _start_and_wait(command, environ, state_dir, signals)
        return _conclude(code, command, state_dir, logs, signals)
    finally:
        if not given:
            shutil.rmtree(state_dir, ignore_errors=True)
        for folder in (logs, logs.parent):  # a run that never came to write anything leaves nothing
            with suppress(OSError):
                folder.rmdir()


class _Signals:
    """Takes SIGTERM, SIGINT and SIGUSR1 for the ranks: the agent has a session of its own and sees none of them."""

    def __init__(self) -> None:
        self.first: str | None = None
        self.count = 0
        self._last = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for name in STOPS:
            number = getattr(signal, name, None)  # Windows has no SIGUSR1
            if number is not None:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = signal.Signals(number).name
        elif now - self._last < ECHO:
            return
        self._last = now
        self.count += 1


def _start_and_wait(command: Command, environ: Mapping[str, str], state_dir: Path, signals: _Signals) -> int:
    agent = subprocess.Popen(
        command.argv, env={**environ, **command.env}, stdin=subprocess.DEVNULL, start_new_session=sys.platform != "win32"
    )
    told: set[int] = set()
    announced = False
    watch = _Watch()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return agent.wait(TICK)
            running = outcome.read_outcomes(state_dir)
            watch.look(running, time.time())
            if signals.count > 1:
                _say(f"{signals.first} again: ends all ranks now")
                return _kill(agent, state_dir)
            if signals.count:
                if not announced:
                    announced = True
                    _say(f"{signals.first}: the ranks save and stop; once more ends them at once")
                _tell(running, told)
    except BaseException:
        _kill(agent, state_dir)
        raise


class _Watch:
    """Ends the ranks that wait for one that has failed: they may hold torchrun's SIGTERM for the wish to save, in vain.

    A rank that has left its error and does not get to its end is ended too: until then torchrun sees no failure.
    """

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}  # pid of a failed rank -> when this was seen

    def look(self, ranks: Mapping[int, outcome.Outcome], now: float) -> None:
        for rank in ranks.values():
            if rank.error is not None or (rank.ended is None and not _lives(rank.pid)):
                self.seen.setdefault(rank.pid, now)
        failed = min((when for pid, when in self.seen.items() if any(rank.pid == pid for rank in ranks.values())), default=now)
        if now - failed < GRACE:
            return
        for rank in ranks.values():
            done = rank.ended is not None and rank.error is None
            if not done and rank.started < failed:  # later ones are torchrun's restart
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)


def _lives(pid: int) -> bool:
    if sys.platform == "win32":  # signal 0 would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, and belongs to someone else
    return True


def _tell(ranks: Mapping[int, outcome.Outcome], told: set[int]) -> None:
    """SIGTERM to every rank that runs and has not had it yet: one that is still starting gets it when it has left its pid."""
    for rank in ranks.values():
        if rank.ended is None and rank.pid not in told:
            told.add(rank.pid)
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGTERM)


def _kill(agent: subprocess.Popen[bytes], state_dir: Path) -> int:
    """Ends the agent and every rank, with all that they started: each leads a process group of its own."""
    running = [rank.pid for rank in outcome.read_outcomes(state_dir).values() if rank.ended is None]
    for pid in (agent.pid, *running):  # the agent first, so that it restarts nobody
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                os.kill(pid, signal.SIGTERM)
            else:
                os.killpg(pid, signal.SIGKILL)
    return agent.wait()


def _conclude(code: int, command: Command, state_dir: Path, logs: Path, signals: _Signals) -> int:
    """hwal's exit code; what went wrong is printed."""
    outcomes = outcome.read_outcomes(state_dir)
    failure = outcome.read_failure(state_dir) or outcome.Failure()
    saved = [left.preempted for left in outcomes.values()]
    if code == 0 or (saved and all(saved)):
        return EXIT_PREEMPTED if any(saved) else EXIT_OK
    if signals.count > 1:
        _say("all ranks were ended; the last finished checkpoint is whole")
        return EXIT_FAILED
    if failure.agent is not None:
        print(f"hwal: error: {failure.agent}", file=sys.stderr)
        return EXIT_USAGE if failure.usage else EXIT_FAILED
    verdict = outcome.first_failure(failure.exits, outcomes)
    if verdict is None:
        _say(f"torchrun ended with exit code {code} and left no word why")
        return EXIT_FAILED
    if signals.count and verdict.outcome is not None and verdict.outcome.error is None:
        _say(f"{signals.first}: rank {verdict.rank} ended before it could save (it had not called hwal.start(), or not yet)")
        return EXIT_FAILED
    size = int(command.env.get(PROCESSES) or len(outcomes))
    print("\n".join(outcome.describe(verdict, size, logs)), file=sys.stderr)
    return verdict.code


def _say(text: str) -> None:
    with suppress(OSError, AttributeError):  # nobody reads it: that does not stop the ranks
        print(f"hwal: {text}", file=sys.stderr, flush=True)
