"""A rank's last word, when its script cannot say it: the watchdog ends the process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hwal.display import tell
from hwal.env import STATE_DIR
from hwal.errors import EXIT_FAILED, RecordError
from hwal.launch.outcome import Outcome


def last_word(environ: Mapping[str, str], rank: int, error: str, lines: Sequence[str], lost_peer: bool) -> bool:
    """Leaves for the launcher what is wrong with the whole run: it shows it, once. False where there is none of hwal's."""
    folder = environ.get(STATE_DIR)
    if not folder:
        return False
    with suppress(OSError, RecordError):
        path = Path(folder) / f"rank-{rank}.json"
        before = Outcome.from_json(path.read_text(encoding="utf-8"), str(path))
        if before.ended is not None:  # the script had its own
            return True
        after = replace(
            before, ended=time.time(), exit=EXIT_FAILED, error=error, lines=tuple(lines), lost_peer=lost_peer, of_world=True
        )
        after.write(Path(folder))
        if rank != 0:
            tell("\n".join(lines))
        return True
    return False
