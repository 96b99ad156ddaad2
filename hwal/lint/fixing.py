"""Fixing: applies the fixes of findings to files, again and again until nothing more can be fixed."""

from __future__ import annotations

import difflib
import tokenize
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from hwal.errors import OutputError
from hwal.lint import edits
from hwal.lint.config import Config
from hwal.lint.diagnostic import Fix
from hwal.lint.discover import Text, module_name, read_text
from hwal.lint.engine import Settings, check_sources
from hwal.lint.run import Result
from hwal.lint.source import read

ROUNDS = 10


def fixed(result: Result, settings: Settings, config: Config, unsafe: bool) -> dict[str, tuple[str, str, int]]:
    """Path -> its text before and after, and the number of fixes. A fix after which the file does not parse is not applied."""
    changed = {}
    for path in dict.fromkeys(found.path for found in result.findings if found.fix and found.cell is None):
        before = read_text(path)
        if isinstance(before, Text):
            after, number = fix_text(before, settings, config, unsafe)
            if number:
                changed[path] = (before.text, after, number)
    return changed


def fix_text(before: Text, settings: Settings, config: Config, unsafe: bool) -> tuple[str, int]:
    """One file's text after all rounds, and the number of fixes."""
    text, total = before.text, 0
    ignored = config.ignored_in(before.path)
    for _ in range(ROUNDS):
        found = check_sources([read(before.path, text, module_name(before.path))], settings)
        fixes: list[Fix] = [
            one.fix
            for one in found
            if one.fix and (unsafe or one.fix.safety == "safe") and not (ignored and one.code.startswith(ignored))
        ]
        lines, done = edits.apply_fixes(text.split("\n"), fixes)
        new = "\n".join(lines)
        if not done or new == text:
            break
        try:
            read(before.path, new)
        except SyntaxError:
            break
        text = new
        total += len(done)
    return text, total


def write(changed: Mapping[str, tuple[str, str, int]]) -> None:
    """Writes fixed files, with the line ends, the encoding and its mark that they had. Raises OutputError."""
    for path, (_, after, _) in changed.items():
        file = Path(path)
        try:
            old = file.read_bytes()
            new = after.replace("\n", "\r\n") if b"\r\n" in old else after
            encoding, _ = tokenize.detect_encoding(BytesIO(old).readline)  # utf-8-sig where there is a mark
            file.write_bytes(new.encode(encoding))
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", where=path, hint="--diff shows the fixes") from None


def diff(changed: Mapping[str, tuple[str, str, int]]) -> str:
    """The changes as a patch."""
    parts: list[str] = []
    for path, (before, after, _) in changed.items():
        old: Sequence[str] = before.splitlines(keepends=True)
        parts += difflib.unified_diff(old, after.splitlines(keepends=True), f"a/{path}", f"b/{path}")
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)
