"""The search for the largest micro-batch that fits: what is known of it, what to try next, and where that is kept.

A global batch of S rows a rank is cut into k forwards. Only the sizes ceil(S / k) are worth a try: any other takes as many
forwards as one of these, and more memory. From the whole share on, k doubles until a forward fits. Then the sizes between
the smallest that failed and the one that fits are halved, as long as they differ by more than an eighth: a larger one is
tried by the process that trains already, so that it costs a new start only where it fails.

The run's folder keeps what was tried, across the processes of a run. What came of it goes into the user's cache, for
other runs of the same model on the same device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hwal.aside import write_file
from hwal.env import cache_folder
from hwal.errors import RecordError
from hwal.record import Record

AUTO = "auto"
FILE = "micro-batch.json"
CACHE = "micro_batch.json"
NEAR = 8  # sizes that differ by less than an eighth of the larger are not told apart: forwards cost by rows, hardly by number
KEPT = 500  # rows of the cache; the oldest go


@dataclass(frozen=True)
class Tried(Record):
    """What is known of the micro-batch of one model on one device.

    Attributes:
        key: which model, device and settings; what is known of one means nothing for another.
        share: rows of a global batch on one rank; where only the data set knows, those of the first forward that failed.
        fits: the most rows a forward has taken. fails: the least that did not fit. None: not known yet.
        trying: rows of the forwards at work now: what a killed process cannot say any more. None in the run's file outside of
            training feeds, and while a checkpoint is saved or the run evaluates.
        settled: no larger size is tried, `fits` is the choice.
    """

    key: str
    share: int | None = None
    fits: int | None = None
    fails: int | None = None
    trying: int | None = None
    settled: bool = False

    def failed(self, rows: int) -> Tried:
        """After a forward of `rows` ran out of memory. One that had fitted before depends on the batch: a size that fits now
        is not left for a larger one any more."""
        late = self.settled or (self.fits is not None and rows <= self.fits)
        fits = None if self.fits is None or self.fits >= rows else self.fits
        fails = rows if self.fails is None else min(rows, self.fails)
        return replace(self, share=self.share or rows, fits=fits, fails=fails, trying=None, settled=late)

    def fitted(self, rows: int) -> Tried:
        """After global batches with forwards of `rows`; settled when there is no larger size to try."""
        now = replace(self, fits=rows)
        return now if self.settled else replace(now, settled=now.next() == rows)

    def next(self) -> int | None:
        """Rows of the forwards to try, or to stay with; None where all of them are to be tried at once and nobody knows how
        many there are. 0: not even one fits."""
        share = self.share
        if self.fits is not None and (self.settled or self.fails is None):
            return self.fits
        if self.fails is None or share is None:
            return share
        if self.fits is None:
            return min(_rows(share, 2 * _forwards(share, self.fails)), self.fails - 1)
        middle = _rows(share, (_forwards(share, self.fits) + _forwards(share, self.fails)) // 2)
        apart = (self.fails - self.fits) * NEAR > self.fails
        return middle if apart and self.fits < middle < self.fails else self.fits


def _forwards(share: int, rows: int) -> int:
    return -(-share // rows)


def _rows(share: int, forwards: int) -> int:
    return -(-share // forwards)


# the run's own file


def read_tries(run_dir: Path) -> dict[str, Tried]:
    """What the processes of this run have tried so far, by its key; nothing where the file is not there, or damaged."""
    path = run_dir / FILE
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {row["key"]: Tried.from_dict(row, str(path)) for row in rows}
    except (OSError, RecordError, ValueError, TypeError, KeyError):
        return {}


def write_tries(run_dir: Path, tries: Mapping[str, Tried]) -> None:
    """Raises OSError."""
    write_file(run_dir / FILE, json.dumps([tried.to_dict() for tried in tries.values()], indent=1) + "\n")


# the user's cache


def cache_path(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / CACHE


def cached(path: Path, key: str) -> tuple[int | None, str | None]:
    """The rows that were found for `key` before, None where there are none; and what is wrong with the cache, if it cannot
    be read."""
    try:
        rows = _rows_of(path).get(key)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not what hwal wrote"
        return None, f"the cache of micro-batches cannot be read and is ignored: {path}: {why}"
    return rows, None


def remember(path: Path, key: str, rows: int) -> str | None:
    """Keeps a choice for other runs; returns what is wrong where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known: dict[str, int] = {}
        with suppress(ValueError):  # one that is damaged is written anew
            known = _rows_of(path)
        known.pop(key, None)
        write_file(path, json.dumps(dict([*known.items(), (key, rows)][-KEPT:]), indent=1) + "\n")
    except OSError as error:
        return f"the micro-batch cannot be kept for other runs: {path}: {error.strerror}"
    return None


def _rows_of(path: Path) -> dict[str, int]:
    """Raises OSError and ValueError."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    if not (isinstance(found, dict) and all(type(rows) is int and rows > 0 for rows in found.values())):
        raise ValueError
    return found
