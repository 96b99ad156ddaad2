"""Cache: the result of a run, for as long as no file, no setting and no rule has changed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from hwal import __version__
from hwal.lint.diagnostic import Diagnostic, Edit, Fix
from hwal.lint.discover import Unreadable
from hwal.lint.run import Result

KEPT = 50
"""Results that are kept; the oldest go."""


def folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "hwal" / "lint"


def key(paths: Sequence[str], said: object) -> str | None:
    """A name for what is asked: the files with their sizes and times, the settings, the linter's own files. None where a file
    cannot be looked at."""
    digest = sha256(f"{__version__} {said!r}".encode(errors="backslashreplace"))
    own = Path(__file__).parent
    try:
        for path in [*sorted(map(str, own.rglob("*.py"))), *paths]:
            status = os.stat(path)
            name = os.fsencode(f"{path}\0{os.path.abspath(path)}")  # which need not be text
            digest.update(name + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    except OSError:
        return None
    return digest.hexdigest()


def load(name: str) -> Result | None:
    """A stored result, None where there is none that can be read."""
    try:
        table = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
        return Result(
            tuple(_diagnostic(row) for row in table["findings"]),
            table["files"],
            tuple(Unreadable(*row) for row in table["errors"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store(name: str, result: Result) -> None:
    """Keeps a result. A cache that cannot be written is none."""
    rows = [found.to_dict() | {"end_column": found.end_column, "cell": found.cell} for found in result.findings]
    table = {"findings": rows, "files": result.files, "errors": [list(error) for error in result.errors]}
    with contextlib.suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        new = place / f"{name}.{os.getpid()}.tmp"
        new.write_text(json.dumps(table), encoding="utf-8")
        new.replace(place / f"{name}.json")
        for old in sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)


def _diagnostic(row: dict[str, object]) -> Diagnostic:
    fix = row.pop("fix")
    if isinstance(fix, dict):
        row["fix"] = Fix(fix["safety"], fix["about"], tuple(Edit(**edit) for edit in fix["edits"]))
    return Diagnostic(**row)  # type: ignore[arg-type]
