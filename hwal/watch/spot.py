"""Where a thread is: the innermost line of the user's own code, and what it called there."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import FrameType

DEBUGGERS = frozenset({"bdb", "pdb", "ipdb", "IPython", "debugpy", "_pydevd_bundle", "pydevd"})
DUMPED = re.compile(r'File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>.+)')  # a frame as faulthandler writes it


@dataclass(frozen=True)
class Signs:
    """How a framework's frames look: module names, or their beginnings.

    Attributes:
        collectives: modules in which a rank waits for the others. may_wait: functions in which it may.
        compilers: modules that are at work only while something is compiled.
        names: functions of hwal's -> what a script calls for them, where that is not `rt.` and their own name.
    """

    collectives: tuple[str, ...] = ()
    may_wait: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spot:
    """Attributes:
    line: "train.py:30, in preprocess". waits: the call in which it waits for other ranks, None when it does not.
    compiling, debugging: whether a compiler, or a debugger's prompt, is at work there.
    """

    line: str
    waits: str | None = None
    compiling: bool = False
    debugging: bool = False


class Library:
    """Tells the user's code from that of Python, of installed packages and of hwal."""

    def __init__(self) -> None:
        names = ("stdlib", "platstdlib", "purelib", "platlib")
        ours = (module for name, module in list(sys.modules.items()) if "." not in name and _is_ours(name))
        folders = {os.path.dirname(path) for module in ours if (path := getattr(module, "__file__", None))}  # noqa: PTH120
        self._ours = tuple(folder + os.sep for folder in folders if folder)
        folders |= {sysconfig.get_path(name) for name in names}
        self._prefixes = ("<", *(folder + os.sep for folder in folders if folder))

    def holds(self, path: str) -> bool:
        main = getattr(sys.modules.get("__main__"), "__file__", None)  # an installed module may be the script
        return path.startswith(self._prefixes) and path != main

    def spot(self, frame: FrameType | None, signs: Signs) -> Spot:
        """Where a thread with this innermost frame is."""
        first, inner = frame, []
        while frame is not None and self.holds(frame.f_code.co_filename):
            inner.append((str(frame.f_globals.get("__name__", "")), frame.f_code.co_name))
            frame = frame.f_back
        shown = frame or first
        if shown is None:
            return Spot("no Python code")
        line = _shown(shown.f_code.co_filename, shown.f_lineno, shown.f_code.co_name)
        modules = [module for module, _ in inner]
        return Spot(
            line,
            _waits(inner, signs),
            compiling=any(module.startswith(signs.compilers) for module in modules) if signs.compilers else False,
            debugging=any(module.partition(".")[0] in DEBUGGERS for module in modules),
        )

    def dumped(self, text: str) -> str | None:
        """The line of the user's code that faulthandler's text of one thread shows, innermost first."""
        frames = _frames(text)
        if not frames:
            return None
        found = next((match for match in frames if not self.holds(match["path"])), frames[0])
        return _shown(found["path"], int(found["line"]), found["name"])

    def is_ours(self, text: str) -> bool:
        """Whether the user's code, in such a text, has called hwal's, which is at work."""
        inner = takewhile(lambda match: self.holds(match["path"]), _frames(text))
        return any(match["path"].startswith(self._ours) for match in inner)


def _frames(text: str) -> list[re.Match[str]]:
    return [match for row in text.splitlines() if (match := DUMPED.search(row))]


def _waits(inner: list[tuple[str, str]], signs: Signs) -> str | None:
    """The script's call in which the thread waits for other ranks. `inner`: (module, function), innermost first."""
    if not inner:
        return None
    module, name = inner[0]
    collective = [pair for pair in inner if signs.collectives and pair[0].startswith(signs.collectives)]
    if not (collective or _is_ours(module) or name in signs.may_wait):
        return None
    ours = [name for module, name in inner if _is_ours(module)]
    if ours:
        return signs.names.get(ours[-1], f"rt.{ours[-1]}")
    if collective:
        call = next((f"{module}.{name}" for module, name in reversed(collective) if name != "wrapper"), collective[-1][0])
        return ".".join(part for part in call.split(".") if not part.startswith("_"))
    return name.strip("_")


def _is_ours(module: str) -> bool:
    package = module.partition(".")[0]
    return package == "hwal" or package.startswith("hwal_")


def _shown(path: str, line: int, name: str) -> str:
    return f"{os.path.basename(path)}:{line}, in {name}"  # noqa: PTH119
