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

from hwal.env import PROCESSES, RESUME, RUN_DIR, STATE_DIR
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, EXIT_USAGE, OutputError
from hwal.launch import outcome
from hwal.launch.attempts import Attempts, searches
from hwal.launch.build import TEMPORARY
from hwal.launch.folder import drop_empty
from hwal.launch.lifeline import AGENT, LAUNCHER, leave_pid
from hwal.launch.signals import Signals
from hwal.values import Command, Launch

TICK = 0.2  # seconds between two looks at the signals
GRACE = 3.0  # seconds that ranks have to end by themselves once one has failed; torchrun alone gives them 30


def run(launch: Launch, environ: Mapping[str, str]) -> int:
    """Returns 0, 75 when the ranks saved and stopped, else the code that the first failing rank's error stands for."""
    (command,) = launch.commands
    alone = launch.engine == "direct"
    logs = Path(command.env[RUN_DIR]) / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        given = launch.state_dir not in (None, TEMPORARY)
        state_dir = Path(launch.state_dir if given and launch.state_dir else tempfile.mkdtemp(prefix="hwal-"))
        leave_pid(state_dir, LAUNCHER)
        if alone:  # the worker's parent is this process
            leave_pid(state_dir, AGENT)
    except OSError as error:
        raise OutputError(f"cannot make {error.filename}: {error.strerror}", hint="choose another --out or TMPDIR") from None
    command = replace(command, env={**command.env, STATE_DIR: str(state_dir)})
    if not alone:
        _say(f"rank 0 prints here, the others write {logs / 'rank-N.log'}")
    starts = Attempts(logs.parent)
    searching = searches(command, environ)
    try:
        with Signals() as signals:
            while True:
                starts.begin()
                code = _start_and_wait(starts.command(command), environ, state_dir, signals, alone)
                told = _again(starts, state_dir) if searching and code != 0 and not signals.count else None
                if told is None:
                    break
                _say(told)
                outcome.clear(state_dir)
            resumed = command.env.get(RESUME) or environ.get(RESUME)
            return _conclude(code, command, resumed, state_dir, logs, signals, starts.killed())
    finally:
        if not given:
            shutil.rmtree(state_dir, ignore_errors=True)
        for folder in (logs, logs.parent):
            drop_empty(folder)


def _again(starts: Attempts, state_dir: Path) -> str | None:
    exits = (outcome.read_failure(state_dir) or outcome.Failure()).exits
    return starts.again(exits, outcome.read_outcomes(state_dir))


def _start_and_wait(command: Command, environ: Mapping[str, str], state_dir: Path, signals: Signals, alone: bool) -> int:
    """The exit code of the agent; of the worker itself where it is `alone`, whose end is left as the agent would leave it."""
    agent = subprocess.Popen(
        command.argv, env={**environ, **command.env}, stdin=subprocess.DEVNULL, start_new_session=sys.platform != "win32"
    )
    announced = False
    watch = _Watch()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = agent.wait(TICK)
                if alone and code != 0:
                    outcome.Failure((outcome.Exit(0, agent.pid, code, time.time()),)).write(state_dir)
                return code
            running = outcome.read_outcomes(state_dir)
            watch.look(running, time.time())
            if signals.count > 1:
                _say(f"{signals.name} again: ends all ranks now")
                return _kill(agent, state_dir)
            if signals.first is not None:
                if not announced:
                    announced = True
                    _say(f"{signals.name}: passed on to the ranks, which save and end; once more ends them at once")
                signals.pass_on(running, signals.first)
            elif any(rank.alone for rank in running.values()):  # the others would wait for it
                signals.pass_on(running, signal.SIGTERM)
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


def _conclude(
    code: int, command: Command, resumed: str | None, state_dir: Path, logs: Path, signals: Signals, killed: str | None
) -> int:
    """hwal's exit code; what went wrong is printed, and what there is to go on from."""
    outcomes = outcome.read_outcomes(state_dir)
    failure = outcome.read_failure(state_dir) or outcome.Failure()
    source = str(logs.parent) if any(logs.parent.glob("checkpoints/step-*")) else resumed
    preempted = [left.preempted for left in outcomes.values()]
    if preempted and all(preempted):
        for line in next((left.lines for left in outcomes.values() if left.alone and left.lines), ()):
            print(line, file=sys.stderr)
        return EXIT_PREEMPTED if source else EXIT_FAILED
    if code == 0:  # a signal may have come to one rank after the end
        return EXIT_OK
    size = int(command.env.get(PROCESSES) or len(outcomes))
    ended, lines = _verdict(code, failure, outcomes, signals, size, logs, killed)
    if source and ended != EXIT_USAGE:
        lines.append(f"hwal: the last finished checkpoint is whole: go on with --resume {source}")
    print("\n".join(lines), file=sys.stderr)
    return ended


def _verdict(
    code: int,
    failure: outcome.Failure,
    outcomes: Mapping[int, outcome.Outcome],
    signals: Signals,
    size: int,
    logs: Path,
    killed: str | None,
) -> tuple[int, list[str]]:
    """hwal's exit code for a run that failed, and what to print about it."""
    if signals.count > 1:
        return EXIT_FAILED, ["hwal: all ranks were ended"]
    if failure.agent is not None:
        return EXIT_USAGE if failure.usage else EXIT_FAILED, [f"hwal: error: {failure.agent}"]
    verdict = outcome.first_failure(failure.exits, outcomes)
    if verdict is None:
        return EXIT_FAILED, [f"hwal: torchrun ended with exit code {code} and left no word why"]
    if signals.count and verdict.outcome is not None and verdict.outcome.error is None:
        return EXIT_FAILED, [f"hwal: {signals.name}: rank {verdict.rank} ended before it could save"]
    return verdict.code, [*outcome.describe(verdict, size, logs, killed), *outcome.restarts(failure)]


def _say(text: str) -> None:
    with suppress(OSError, AttributeError):  # nobody reads it: that does not stop the ranks
        print(f"hwal: {text}", file=sys.stderr, flush=True)
