"""Parser: argparse with hwal's errors, which name the nearest flag, and with help that costs nothing until it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import NoReturn

from hwal.cli import unknown_argument
from hwal.errors import UsageError


class Exit(Exception):
    """--help was printed."""


NARROWEST, WIDEST = 30, 100  # columns in which help can be read


class Parser(argparse.ArgumentParser):
    """Flags of one command. Flags are never abbreviated: a new one must not change what an old command line means."""

    def __init__(self, command: str, about: str, usage: str, epilog: str) -> None:
        width = max(NARROWEST, min(columns(WIDEST), WIDEST))
        super().__init__(
            prog=f"hwal {command}",
            usage=f"hwal {command} {usage}",
            description=_fit(about, width),
            epilog=_fit(epilog, width),
            # with a width given, argparse need not import shutil to measure the terminal, once for every flag
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width, max_help_position=26),
            allow_abbrev=False,
        )

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise Exit

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flags = [name for action in self._actions for name in action.option_strings]
            raise unknown_argument(self.prog, unknown.split()[0], flags)
        text = message.removeprefix("argument ").replace(": '", " '", 1)  # --seed: 'x': must be … -> --seed 'x': must be …
        raise UsageError(text, where=self.prog, hint=f"{self.prog} --help")


def columns(default: int) -> int:
    """Columns of the terminal, `default` where there is none."""
    if (text := os.environ.get("COLUMNS", "")).isdigit() and int(text) > 0:
        return int(text)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or default
    except (OSError, ValueError, AttributeError):
        return default


def _fit(text: str, width: int) -> str:
    """Lines that are too long, wrapped: what follows stands four columns further in."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    from textwrap import wrap

    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines += wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(lines)
