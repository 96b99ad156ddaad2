"""Discover: which files to lint, and their text, or the line that says why a file has none."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from hwal.errors import UsageError
from hwal.lint.notebook import NotebookError, from_notebook

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", ".venv"})
LARGEST = 4_000_000
"""Bytes of a file that is still read: what is larger is data or generated."""


class Text(NamedTuple):
    """A file's text. `cells`: of a notebook, the cell and the line in it of each line."""

    path: str
    text: str
    cells: list[tuple[int, int]] | None = None


class Unreadable(NamedTuple):
    """A file that could not be linted, and why. `line`: the one that is no Python; in a notebook it counts in `cell`."""

    path: str
    message: str
    line: int | None = None
    cell: int | None = None


def files(paths: Iterable[str]) -> list[str]:
    """The Python files and notebooks of some files and folders, each once, in order. Raises UsageError for a path that is not
    there."""
    found: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            found.update(dict.fromkeys(_walk(path)))
        elif os.path.exists(path):
            found[os.path.normpath(path)] = None
        else:
            raise UsageError(f"no such file or folder: {path}", where=f"hwal lint {path}", hint="hwal lint .")
    return list(found)


def _walk(root: str) -> Iterator[str]:
    """Files below a folder. A folder that was seen, through a symlink say, is not entered again."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        try:
            status = os.stat(folder)
        except OSError:
            folders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(names):
            if name.endswith((".py", ".ipynb")):
                yield os.path.normpath(os.path.join(folder, name))


def read_text(path: str) -> Text | Unreadable:
    """One file's text, by its own coding line. Never raises."""
    try:
        if os.path.isdir(path):
            return Unreadable(path, "a folder")
        if not Path(path).is_file():
            return Unreadable(path, "not a plain file")
        if os.path.getsize(path) > LARGEST:
            return Unreadable(path, f"larger than {LARGEST // 1_000_000} MB: not read")
        data = Path(path).read_bytes()
    except OSError as error:
        return Unreadable(path, f"cannot be read: {error.strerror}")
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Unreadable(path, f"cannot be decoded: {_one_line(error)}")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if path.endswith(".ipynb"):
        try:
            code, cells = from_notebook(text)
        except NotebookError as error:
            return Unreadable(path, str(error))
        return Text(path, code, cells)
    return Text(path, text)


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def module_name(path: str) -> str:
    """The dotted name of a file: its folders as long as they are packages."""
    parts = [Path(path).stem]
    folder = os.path.dirname(os.path.abspath(path))
    if parts == ["__init__"]:
        parts = [os.path.basename(folder)]
        folder = os.path.dirname(folder)
    while os.path.exists(os.path.join(folder, "__init__.py")):
        parts.append(os.path.basename(folder))
        folder = os.path.dirname(folder)
    return ".".join(reversed(parts))
