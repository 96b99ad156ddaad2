"""A terminal that may close while a script prints to it: SIGHUP asks the run to save, and a print must not fail it before."""

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


def outlive_terminal() -> None:
    """Has stdout and stderr survive their terminal, where they have one."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stands_in = io.TextIOWrapper(
                io.BufferedWriter(Terminal(stream.fileno(), "w", closefd=False)),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, stands_in)
