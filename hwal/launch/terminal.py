"""What a script prints goes to a terminal that may close, or to a disk that may be full: neither must fail its training.

A terminal that closes sends SIGHUP, which asks the run to save first.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class Terminal(io.FileIO):
    """The terminal behind a descriptor, and nothing once it is gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


class Log(io.FileIO):
    """A file of hwal's own behind a descriptor. What there is no room for is left out."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def outlive_terminal() -> None:
    """Has stdout and stderr survive their terminal, where they have one."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            setattr(sys, name, _over(stream, Terminal))


def outlive_disk() -> None:
    """Has stdout and stderr, which are a log, survive its disk."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _over(stream, Log))


def _over(stream: io.TextIOWrapper, kind: type[io.FileIO]) -> io.TextIOWrapper:
    """`stream` as it is, over another kind of file."""
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "w", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
