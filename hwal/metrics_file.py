"""MetricsFile: a run's metrics.jsonl, which never stops training. What cannot be written, to a disk that is full say, waits in
memory and is tried again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

MOST = 1 << 26  # bytes that wait; what comes then is lost


class MetricsFile:
    """`say` is told once when the file cannot be written, once when it can again, and in the end what it lacks."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._descriptor: int | None = None
        self._waiting = b""
        self._lost = 0  # lines
        self._error: OSError | None = None

    def add(self, lines: Sequence[str]) -> None:
        """Lines without their ends."""
        if len(self._waiting) < MOST:
            self._waiting += "".join(line + "\n" for line in lines).encode()
        else:
            self._lost += len(lines)
        if self._waiting:
            self.attempt(self._write)

    def take_back(self, line: str) -> None:
        """Removes the last line, which is that one, from the file or from what waits for it."""
        data = f"{line}\n".encode()
        if self._waiting.endswith(data):
            self._waiting = self._waiting[: -len(data)]
        elif not self._waiting:
            self.attempt(lambda: self._shorten(data))

    def _shorten(self, data: bytes) -> None:
        with self._path.open("r+b") as file:
            start = file.seek(0, os.SEEK_END) - len(data)
            if start >= 0 and file.seek(start) == start and file.read() == data:
                file.truncate(start)

    def attempt(self, action: Callable[[], None]) -> None:
        """Does something with the file; what the system has against it is told once."""
        try:
            action()
        except OSError as error:
            if self._error is None:
                self._say(f"{self._path.name} cannot be written ({error.strerror}); training goes on, and its lines wait")
            self._error = error
            self._release()
            return
        if self._error is not None and not self._waiting:
            self._error = None
            self._say(f"{self._path.name} is written again")

    def close(self) -> None:
        if self._waiting:
            self.attempt(self._write)
        if missing := self._waiting.count(b"\n") + self._lost:
            why = f" ({self._error.strerror})" if self._error is not None else ""
            self._say(f"{self._path.name} lacks {missing} line{'s' * (missing > 1)}{why}")
        self._release()

    def _write(self) -> None:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:  # somebody removed it
            self._release()
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        while self._waiting:  # a disk may have room for a part
            self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]

    def _release(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
