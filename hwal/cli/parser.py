"""Parser: argparse with hwal's errors, which name the nearest flag, and with help that costs nothing until it is asked for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn, TypeVar

from hwal.errors import UsageError, nearest

T = TypeVar("T")


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


def unknown_argument(prog: str, token: str, flags: Iterable[str]) -> UsageError:
    """The error for a flag, or a word, that a command does not know."""
    name = token.partition("=")[0]
    if not name.startswith("-"):
        return UsageError(f"{prog} takes no {name!r}", where=f"{prog} … {name}", hint=f"{prog} --help")
    near = nearest(name, [flag for flag in flags if flag.startswith("--")]) if name.startswith("--") else None
    return UsageError(
        f"unknown flag {name}", where=f"{prog} … {token}", hint=f"did you mean {near}?" if near else f"{prog} --help"
    )


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` for argparse, which drops a ValueError's own words."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


def verbatim(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """As typed, but the text is passed on as it was."""

    def read(text: str) -> str:
        typed(parse)(text)
        return text

    return read
