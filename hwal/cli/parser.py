"""Parser: argparse with hwal's errors, which name the nearest flag, and with help that costs nothing until it is asked for."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import NoReturn

from hwal.cli import unknown_argument
from hwal.errors import UsageError


class Exit(Exception):
    """--help was printed."""


class Parser(argparse.ArgumentParser):
    """Flags of one command. Flags are never abbreviated: a new one must not change what an old command line means."""

    def __init__(self, command: str, about: str, usage: str, epilog: str) -> None:
        width = min(int(os.environ.get("COLUMNS") or 100) if os.environ.get("COLUMNS", "1").isdigit() else 100, 100)
        super().__init__(
            prog=f"hwal {command}",
            usage=f"hwal {command} {usage}",
            description=about,
            epilog=epilog,
            # with a width given, argparse need not import shutil to measure the terminal, once for every flag
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=max(width, 60), max_help_position=26),
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
