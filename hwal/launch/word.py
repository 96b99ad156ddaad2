"""A rank's word to the launcher when its script cannot say it: the watchdog's, that it is at work, and the last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hwal.display import tell
from hwal.env import STATE_DIR
from hwal.errors import EXIT_FAILED, RecordError
from hwal.launch.outcome import Outcome
from hwal.watch.beat import Beat


def leave_beat(environ: Mapping[str, str], beat: Beat) -> None:
    """Leaves where the rank is in state_dir/beat-N.json, over the one before: half a beat, or what a full disk leaves of it, is
    none, and a rank that has none is not judged by the launcher."""
    folder = environ.get(STATE_DIR)
    if folder:
        with suppress(OSError):
            (Path(folder) / f"beat-{beat.rank}.json").write_bytes(beat.to_ascii())


def drop_beat(environ: Mapping[str, str], rank: int) -> None:
    """The rank's watchdog is at work no longer."""
    folder = environ.get(STATE_DIR)
    if folder:
        with suppress(OSError):
            (Path(folder) / f"beat-{rank}.json").unlink()


def read_beats(state_dir: Path) -> dict[int, tuple[Beat, int]]:
    """The process of a rank -> its last beat, and when it left that (nanoseconds, of use to tell two beats apart)."""
    found = {}
    for path in state_dir.glob("beat-*.json"):
        with suppress(OSError, RecordError):
            when = path.stat().st_mtime_ns
            beat = Beat.from_json(path.read_bytes(), str(path))
            found[beat.pid] = beat, when
    return found


def last_word(environ: Mapping[str, str], rank: int, error: str, lines: Sequence[str], lost_peer: bool) -> bool:
    """Leaves for the launcher what is wrong with the whole run: it shows it, once. False where there is none of hwal's."""
    return _leave(environ, rank, error, lines, EXIT_FAILED, lost_peer=lost_peer, of_world=True)


def nothing_lost(environ: Mapping[str, str], rank: int, line: str, code: int) -> bool:
    """Leaves that the rank was ended at a signal, and there was nothing to save yet. False as in last_word."""
    return _leave(environ, rank, None, [line], code, preempted=True, alone=True)


def _leave(environ: Mapping[str, str], rank: int, error: str | None, lines: Sequence[str], code: int, **more: Any) -> bool:
    folder = environ.get(STATE_DIR)
    if not folder:
        return False
    with suppress(OSError, RecordError):
        path = Path(folder) / f"rank-{rank}.json"
        before = Outcome.from_json(path.read_bytes(), str(path))
        if before.ended is not None:  # the script had its own
            return True
        after = replace(before, ended=time.time(), exit=code, error=error, lines=tuple(lines), **more)
        after.write(Path(folder))
        if rank != 0:
            tell("\n".join(lines))
        return True
    return False
