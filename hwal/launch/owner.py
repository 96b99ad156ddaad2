"""What a watchdog does to its rank, and what its rank says of one that is gone: the same for all frameworks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hwal.display import tell
from hwal.env import STATE_DIR, spelled
from hwal.errors import EXIT_FAILED, HwalError, LostRankError
from hwal.launch.outcome import is_lost_peer
from hwal.launch.script import told
from hwal.launch.word import drop_beat, last_word, leave_beat, nothing_lost
from hwal.preempt import nothing_to_save, rank_code
from hwal.runtime import Runtime
from hwal.watch import stacks
from hwal.watch.beat import Beat, Doom
from hwal.watch.watchdog import Watchdog

FLUSH = 1.0  # seconds to look for checkpoints and to write metrics down: the file system may be what hangs


def explain(rt: Runtime, watchdog: Watchdog, error: BaseException | None) -> LostRankError | None:
    """Which rank is gone, where the script's error only says that a connection closed."""
    if not isinstance(error, Exception) or isinstance(error, HwalError) or not is_lost_peer(str(error)):
        return None
    told = watchdog.explain()
    if told is not None:
        told.hint = told.hint or _go_on(rt, _newest(rt))
    return told


def _newest(rt: Runtime) -> str | None:
    """The run's newest checkpoint."""
    found = rt.checkpoints.found()
    return found[0].name if found else None


def _go_on(rt: Runtime, newest: str | None) -> str | None:
    """hwal's launcher says by itself what to go on from."""
    if newest is None or os.environ.get(STATE_DIR):
        return None
    return f"{spelled('resume', rt.run_dir)} goes on from {newest}"


class RankOwner:
    """What a watchdog does to its rank (hwal.watch.watchdog.Owner), whatever its main thread does meanwhile.

    `begun`: whether the rank has begun its first step, and so has something to lose.
    """

    def __init__(self, rt: Runtime, begun: Callable[[], bool]) -> None:
        self._rt = rt
        self._begun = begun

    def asked(self) -> str | None:
        return self._rt.stop_request.asked()

    def show(self, beat: Beat) -> None:
        leave_beat(os.environ, beat)

    def rest(self) -> None:
        drop_beat(os.environ, self._rt.rank)

    def tell(self, line: str) -> None:
        if self._rt.is_main:
            self._rt.say(line)
        else:  # into the log of its rank
            tell(line)

    def end(self, doom: Doom) -> None:
        """Ends this process: the metrics are written, its word is left, its children are ended."""
        code = EXIT_FAILED
        try:
            if doom.asked is not None and not self._begun():
                code = self._nothing_lost(doom)
            else:
                self._failed(doom)
            for child in stacks.children_of(os.getpid()):
                stacks.kill(child)
        finally:
            os._exit(code)

    def _failed(self, doom: Doom) -> None:
        rt = self._rt
        hint = "; ".join(part for part in (_go_on(rt, self._files()), doom.hint) if part) or None
        lines = told(HwalError(doom.what, why=doom.why, hint=hint))
        if not last_word(os.environ, rt.rank, doom.what, lines, doom.lost):
            print("\n".join(lines if rt.is_main or doom.lost else lines[:1]), file=sys.stderr, flush=True)

    def _nothing_lost(self, doom: Doom) -> int:
        """Says that a run which was asked to end before it had done a step does so now; returns the exit code."""
        rt = self._rt
        before = rt.job.settings.resume
        if before is not None and Path(before) == rt.run_dir:  # no more than there is in its folder
            before = None
        source = rt.run_dir if self._files() is not None else before
        code, line = nothing_to_save(doom.what, "before a step was done", source)
        code = rank_code(code, rt.job.world.launcher)
        if not nothing_lost(os.environ, rt.rank, f"hwal: {line}", code) and rt.is_main:
            print(f"hwal: {line}", file=sys.stderr, flush=True)
        return code

    def _files(self) -> str | None:
        """Writes the metrics down, and looks for the newest checkpoint; None also where the file system does not answer."""
        answer: list[str | None] = []

        def work() -> None:
            self._rt.reporter.close(True)
            answer.append(_newest(self._rt))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(FLUSH)
        return answer[0] if answer else None
