"""What comes of a run that had a launcher: hwal's exit code, what went wrong, and what there is to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwal.display import tell
from hwal.env import RESUME
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, EXIT_USAGE, HwalError
from hwal.launch import outcome
from hwal.launch.script import told
from hwal.preempt import nothing_to_save
from hwal.resuming import after_failure, source_of
from hwal.watch.beat import Doom


@dataclass(frozen=True)
class End:
    """How the last start of a run ended.

    Attributes:
        code: the exit code of what was started. signal: the name of the signal that asked the run to end.
        none_there: that was passed on to nobody, since no rank had started. twice: a second one ended all at once.
        doom: why the launcher ended the ranks. failure: how the worker ended, where no agent is there to leave it.
    """

    code: int
    signal: str | None = None
    none_there: bool = False
    twice: bool = False
    doom: Doom | None = None
    failure: outcome.Failure | None = None


def conclude(end: End, size: int | None, environ: Mapping[str, str], state_dir: Path, logs: Path, killed: str | None) -> int:
    """hwal's exit code; the rest is printed. `size`: of the world, None where machines came and went. `environ`: what the ranks
    were started with. `killed`: as in outcome.describe."""
    outcomes = outcome.read_outcomes(state_dir)
    source = source_of(logs.parent, environ.get(RESUME))
    preempted = [left.preempted for left in outcomes.values()]
    if preempted and all(preempted):
        for line in next((left.lines for left in outcomes.values() if left.lines), ()):
            tell(line)
        return EXIT_PREEMPTED if source else EXIT_FAILED
    if end.code == 0:  # a signal may have come to one rank after the end
        return EXIT_OK
    if end.signal is not None and end.none_there:
        code, line = nothing_to_save(end.signal, "before any rank had started", source, environ)
        tell(f"hwal: {line}")
        return code
    failure = end.failure or outcome.read_failure(state_dir) or outcome.Failure()
    verdict = outcome.first_failure(failure.exits, outcomes, outcome.read_ended(state_dir))
    code, lines = _verdict(end, failure, verdict, size or len(outcomes), logs, killed)
    if code != EXIT_USAGE and (word := after_failure(logs.parent, environ.get(RESUME), environ)) is not None:
        lines.append(word)
    tell("\n".join(lines))
    return code


def _verdict(
    end: End,
    failure: outcome.Failure,
    verdict: outcome.Verdict | None,
    size: int,
    logs: Path,
    killed: str | None,
) -> tuple[int, list[str]]:
    """hwal's exit code for a run that failed, and what to print about it."""
    if end.twice:
        return EXIT_FAILED, ["hwal: all ranks were ended"]
    if end.doom is not None:
        return EXIT_FAILED, told(HwalError(end.doom.what, why=end.doom.why, hint=end.doom.hint))
    if failure.agent is not None:
        return EXIT_USAGE if failure.usage else EXIT_FAILED, [f"hwal: error: {failure.agent}"]
    if verdict is None:
        return EXIT_FAILED, [f"hwal: torchrun ended with exit code {end.code} and left no word why"]
    if end.signal is not None and verdict.outcome is not None and verdict.outcome.error is None:
        return EXIT_FAILED, [f"hwal: {end.signal}: rank {verdict.rank} ended before it could save"]
    return verdict.code, [*outcome.describe(verdict, size, logs, killed), *outcome.restarts(failure)]
