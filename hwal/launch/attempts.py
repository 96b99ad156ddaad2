"""The parent's side of --micro-batch auto: a run that did not fit is started again in the same folder, with smaller forwards.

A rank whose framework raises leaves word of it in the run's folder (hwal.micro_batch). One that the kernel kills cannot: here
the kernel's own counters say that it did, and the word is what that rank was trying.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from hwal.cgroup import kills
from hwal.env import ATTEMPT, PROCESSES, RUN_DIR, SETTINGS, Settings
from hwal.errors import OutputError, UsageError
from hwal.host import Host
from hwal.launch.outcome import SIGKILL, Exit, Outcome, first_failure
from hwal.launch.place import read_plan
from hwal.micro_batch import AUTO, FILE, read_tries, write_tries
from hwal.shortage import killed
from hwal.values import Command, Launch


def searches(command: Command, environ: Mapping[str, str]) -> bool:
    """Whether the micro-batch of what `command` starts is searched for."""
    environ = {**environ, **command.env}
    plan = read_plan(environ)
    return (plan.micro_batch if plan is not None else Settings.from_environ(environ).micro_batch) == AUTO


def of_script(argv0: str, arguments: Iterable[str], run_dir: Path) -> Launch:
    """The Launch of the program that this process runs, which plain python has started: as a child of this one."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        name = spec.name.removesuffix(".__main__")
        script: tuple[str, ...] = ("-m", name)
    elif Path(argv0).is_file():
        script = (argv0,)
    else:
        flag = next(row.variable for row in SETTINGS if row.field == "micro_batch")
        raise UsageError(
            "the micro-batch cannot be searched for here",
            where=f"{flag}={AUTO}",
            why="a program is started again where it does not fit, and this one stands in no file",
            hint=f"a script in a file, or {flag}=N",
        )
    command = Command((sys.executable, "-m", "hwal.worker", *script, *arguments), {RUN_DIR: str(run_dir), PROCESSES: "1"})
    return Launch("direct", (command,), "the micro-batch is searched for", None, ())


class Attempts:
    """The starts of one run.

    Attributes:
        count: how many there were before the one at work.
    """

    def __init__(self, run_dir: Path, host: Host | None = None) -> None:
        self.count = 0
        self._run_dir = run_dir
        self._host = host or Host()

    def begin(self) -> None:
        """A start follows. Raises OutputError."""
        self._kills = kills(self._host)
        before = read_tries(self._run_dir)
        self._before = {key: replace(tried, trying=None) for key, tried in before.items()}
        if self._before != before:
            self._write()

    def again(self, exits: Iterable[Exit], outcomes: Mapping[int, Outcome], ended: frozenset[int] = frozenset()) -> str | None:
        """After a start that failed: what to say of the next; None where another would help nothing. Raises OutputError.

        `ended`: the processes that hwal has ended."""
        exits = tuple(exits)
        now = read_tries(self._run_dir)
        tried = next((t for key, t in now.items() if t.fails != getattr(self._before.get(key), "fails", None)), None)
        verdict = first_failure(exits, outcomes, ended)
        if tried is not None:
            why = verdict.outcome.error if verdict is not None and verdict.outcome is not None else None
        else:
            tried = next((t for t in now.values() if t.trying is not None), None)
            why = self.killed() if any(end.code == -SIGKILL and end.pid not in ended for end in exits) else None
            if tried is None or tried.trying is None or why is None:
                return None
            why = why.removeprefix("was ")
            tried = tried.failed(tried.trying)
            self._before = {**now, tried.key: tried}
            self._write()
        rows = tried.next()
        if not rows:
            return None
        self.count += 1
        return f"micro-batch {tried.fails} did not fit ({why or 'out of memory'}); trying {rows}"

    def killed(self) -> str | None:
        """What to say of a rank that SIGKILL ended in this start, if the kernel did it."""
        return killed(self._kills, self._host)

    def _write(self) -> None:
        try:
            write_tries(self._run_dir, self._before)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._run_dir / FILE}: {error.strerror}", where="--out", hint="free space, or another --out"
            ) from None

    def command(self, command: Command) -> Command:
        """`command` for the start at work: it knows that there were others, and goes on from the run's own checkpoint."""
        return replace(command, env={**command.env, ATTEMPT: str(self.count)}) if self.count else command
