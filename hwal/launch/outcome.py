"""What each rank leaves for the launcher, and the launcher's verdict: which rank failed first, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hwal.aside import alive, born
from hwal.errors import EXIT_FAILED, EXIT_USAGE, RecordError
from hwal.record import Record

FAILURE = "failure.json"
ENDED = "ended.txt"  # the processes that the launcher has ended because a rank had failed, a line each
LINES = 15  # of a failed rank that are shown
SIGTERM, SIGKILL = 15, 9  # the numbers that exit codes hold, on every system
LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "timed out waiting for",
    "nccl communicator was aborted",
    "failed to recv",
    "collective ops is aborted",
)


@dataclass(frozen=True)
class Outcome(Record):
    """A rank's word to the launcher, in state_dir/rank-N.json: first when it starts, again when it ends.

    Attributes:
        device: "cpu:0", as hwal devices names it.
        started, ended: Unix time in seconds; `ended` None while it runs.
        exit: the exit code that it ends with.
        error: one line; None after success. lines: what to show of it, its last line last.
        lost_peer: the error says that another rank went away, so it is hardly the cause.
        preempted: it ended because a signal asked for it. alone: by itself, before there was anything to save.
        of_world: the error is not this rank's own, but says what is wrong with the whole run.
        log: the file that holds all it wrote, None where that went to the terminal.
        born: when its process began (hwal.aside.born).
    """

    rank: int
    pid: int
    device: str
    started: float
    ended: float | None = None
    exit: int | None = None
    error: str | None = None
    lines: tuple[str, ...] = ()
    lost_peer: bool = False
    preempted: bool = False
    alone: bool = False
    of_world: bool = False
    log: str | None = None
    born: int | None = None

    @property
    def lives(self) -> bool:
        """Whether its process is there still, and no other that has its number by now. True where nobody can be asked."""
        return os.name == "nt" or (alive(self.pid) and self.born in (None, born(self.pid)))

    def write(self, state_dir: Path) -> None:
        """Written aside and renamed: the launcher never reads half of it. On a disk that is full, over the word before, which
        has its place there. Raises OSError.
        """
        path = state_dir / f"rank-{self.rank}.json"
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            aside.write_bytes(self.to_ascii())
            aside.replace(path)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            if not path.exists():
                raise
            with path.open("r+b") as file:
                file.write(self.to_ascii())
                file.truncate()


@dataclass(frozen=True)
class Exit(Record):
    """How the process of a rank ended, as its parent saw it: exit code (negative: that signal), Unix time in whole seconds."""

    rank: int
    pid: int
    code: int
    time: float


@dataclass(frozen=True)
class Failure(Record):
    """What the agent leaves in state_dir/failure.json: the ranks that failed, or why it could not start any.

    `restarts`: the first line about each failure before, after which the world was started again.
    """

    exits: tuple[Exit, ...] = ()
    restarts: tuple[str, ...] = ()
    agent: str | None = None
    usage: bool = False

    def write(self, state_dir: Path) -> None:
        aside = state_dir / (FAILURE + ".tmp")
        aside.write_bytes(self.to_ascii())
        aside.replace(state_dir / FAILURE)


@dataclass(frozen=True)
class Verdict:
    """The rank that failed first, and what is known of it."""

    rank: int
    exit: Exit | None
    outcome: Outcome | None

    @property
    def code(self) -> int:
        """hwal's own exit code: that of a usage error where the rank ended with one, else 1."""
        code = self.outcome.exit if self.outcome else None
        return EXIT_USAGE if code == EXIT_USAGE else EXIT_FAILED


def read_outcomes(state_dir: Path) -> dict[int, Outcome]:
    """Rank -> what it left. A file that is no Outcome is passed over: its rank's exit code still counts."""
    found = {}
    for path in sorted(state_dir.glob("rank-*.json")):
        try:
            outcome = Outcome.from_json(path.read_bytes(), str(path))
        except (OSError, RecordError):
            continue
        found[outcome.rank] = outcome
    return found


def clear(state_dir: Path) -> None:
    """Forgets a start, before another one in the same folder."""
    for path in state_dir.iterdir():
        if path.is_file() and path.suffix != ".pid":
            path.unlink(missing_ok=True)


def read_failure(state_dir: Path) -> Failure | None:
    path = state_dir / FAILURE
    try:
        return Failure.from_json(path.read_bytes(), str(path))
    except (OSError, RecordError):
        return None


def leave_ended(state_dir: Path, pid: int) -> None:
    """Leaves that the launcher is about to end a process."""
    with suppress(OSError), (state_dir / ENDED).open("a", encoding="ascii") as file:
        file.write(f"{pid}\n")


def read_ended(state_dir: Path) -> frozenset[int]:
    try:
        lines = (state_dir / ENDED).read_text(encoding="ascii").split()
    except OSError:
        return frozenset()
    return frozenset(int(line) for line in lines)


def is_lost_peer(text: str) -> bool:
    """Whether an error message only says that another rank is gone."""
    lower = text.lower()
    return any(words in lower for words in LOST_PEER)


def first_failure(
    exits: Iterable[Exit], outcomes: Mapping[int, Outcome], ended: frozenset[int] = frozenset()
) -> Verdict | None:
    """Which rank failed first; None when none did. `ended`: the processes that hwal has ended (read_ended).

    What all ranks say of the whole run, that it is stuck, comes before all. Then a rank that a signal killed before it could
    leave an error; the earliest error that is not about a lost peer; the earliest of those; last, ranks that were ended
    because another failed (SIGTERM, SIGKILL later, or hwal's).
    """
    exits = list(exits)
    begun = min((end.time for end in exits), default=0.0)
    candidates = []
    for end in exits:
        left = outcomes.get(end.rank)
        if left is not None and left.error is not None:
            order = 2 if left.lost_peer else -1 if left.of_world else 1
        elif end.code < 0 and end.code != -SIGTERM and end.time <= begun + 1 and end.pid not in ended:
            order = 0
        else:
            order = 3 if end.code < 0 else 1
        when = left.ended if left is not None and left.ended is not None else end.time
        candidates.append((order, when, end.rank, Verdict(end.rank, end, left)))
    known = {end.rank for end in exits}
    for rank, left in outcomes.items():
        if rank not in known and left.error is not None:
            candidates.append((2 if left.lost_peer else 1, left.ended or 0.0, rank, Verdict(rank, None, left)))
    return min(candidates, key=lambda candidate: candidate[:3])[3] if candidates else None


def describe(verdict: Verdict, size: int, logs: Path | None, killed: str | None = None) -> list[str]:
    """The lines that hwal prints about a failed run; `killed`: what is known of a SIGKILL that came from the kernel."""
    outcome, rank = verdict.outcome, verdict.rank
    if outcome is not None and outcome.of_world:
        return list(outcome.lines)
    device = f" on {outcome.device}" if outcome else ""
    lines = [f"hwal: rank {rank} of {size}{device} {_how(verdict, killed)}"]
    log = Path(outcome.log) if outcome and outcome.log else logs / f"rank-{rank}.log" if logs else None
    shown = list(outcome.lines) if outcome and outcome.error else _tail(log)
    lines += [f"  {line}" for line in shown[-LINES:]]
    if log is not None and log.exists():
        lines.append(f"  all of it: {log}")
    return lines


def restarts(failure: Failure) -> list[str]:
    """What to say of the failures before the last."""
    count = len(failure.restarts)
    if not count:
        return []
    times = "once" if count == 1 else f"{count} times"
    lines = [f"  the world was started again {times} before, as many as --max-restarts allows"]
    return lines + [f"  failure {number}: {line}" for number, line in enumerate(failure.restarts, 1)]


def _how(verdict: Verdict, killed: str | None) -> str:
    if verdict.outcome and verdict.outcome.error:
        return f"failed first: {verdict.outcome.error}"
    code = verdict.exit.code if verdict.exit else None
    if code is not None and code < 0:
        name = signal_name(-code)
        if code == -SIGKILL:
            return killed or f"was killed by {name}: the kernel's out-of-memory killer does this (see dmesg), or someone did"
        return f"was killed by {name}"
    return f"ended with exit code {code}" if code is not None else "ended without a word"


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(log: Path | None) -> Sequence[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:] if log else ()
    except OSError:
        return ()
