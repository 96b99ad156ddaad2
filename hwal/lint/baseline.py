"""Baselines: the findings that an old code base starts with, which are not told again."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from hwal.errors import OutputError, UsageError
from hwal.lint.diagnostic import Diagnostic

Key = tuple[str, str, str]
"""Path, code, and the text of the line: a finding that moves with its line is the same."""


def key(found: Diagnostic, line: str) -> Key:
    return os.path.normpath(found.path).replace(os.sep, "/"), found.code, line.strip()


def load(path: str) -> Counter[Key]:
    """Raises UsageError for a file that is no baseline."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["findings"]
        return Counter((str(row["path"]), str(row["code"]), str(row["text"])) for row in rows for _ in range(int(row["count"])))
    except OSError as error:
        raise UsageError(
            f"the baseline cannot be read: {error.strerror}", where=path, hint=f"--write-baseline {path}"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError("no baseline", where=path, hint=f"--write-baseline {path} makes one") from None


def save(path: str, findings: Iterable[Diagnostic], line_of: Callable[[Diagnostic], str]) -> int:
    """Writes the findings as a baseline and returns their number. Raises OutputError."""
    counts = Counter(key(found, line_of(found)) for found in findings)
    rows = [{"path": p, "code": code, "text": text, "count": n} for (p, code, text), n in sorted(counts.items())]
    try:
        Path(path).write_text(json.dumps({"findings": rows}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"the baseline cannot be written: {error.strerror}", where=path, hint="another path") from None
    return sum(counts.values())


def without(findings: Iterable[Diagnostic], known: Counter[Key], line_of: Callable[[Diagnostic], str]) -> list[Diagnostic]:
    """The findings that are not in a baseline; of several on equal lines, as many as are more."""
    left = Counter(known)
    new = []
    for found in findings:
        one = key(found, line_of(found))
        if left[one]:
            left[one] -= 1
        else:
            new.append(found)
    return new
