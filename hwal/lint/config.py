"""Configuration: `[tool.hwal.lint]` of the pyproject.toml nearest above what is linted."""

from __future__ import annotations

import fnmatch
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwal.errors import UsageError, nearest
from hwal.lint.catalog import check_codes
from hwal.lint.diagnostic import TARGETS, Target
from hwal.lint.engine import Settings

KEYS = ("target", "select", "ignore", "exclude", "per-file-ignores", "tf-version", "baseline")


@dataclass(frozen=True)
class Config:
    """What a pyproject.toml says. `per_file_ignores`: pattern of a path, from the file's folder -> codes. `exclude`:
    patterns of files that are not linted: templates that are no Python, say."""

    root: str = "."
    target: Target | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tf_version: tuple[int, int] = Settings().tf_version
    baseline: str | None = None
    exclude: tuple[str, ...] = ()

    def excludes(self, path: str) -> bool:
        """Whether a file is not to be linted."""
        return bool(self.exclude) and any(self._matches(path, pattern) for pattern in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The codes that are ignored in one file."""
        if not self.per_file_ignores:
            return ()
        found: list[str] = []
        for pattern, codes in self.per_file_ignores.items():
            if self._matches(path, pattern):
                found += codes
        return tuple(found)

    def _matches(self, path: str, pattern: str) -> bool:
        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
        return fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(relative.rpartition("/")[2], pattern)


def find(start: str) -> Config:
    """The configuration for a path. Raises UsageError for one that says what cannot be."""
    folder = Path(start).resolve()
    for parent in [folder, *folder.parents]:
        path = parent / "pyproject.toml"
        if path.is_file():
            try:
                table = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
                raise UsageError(f"cannot be read: {error}", where=str(path), hint="mend it, or --no-config") from None
            section = table.get("tool", {}).get("hwal", {}).get("lint", {})
            return parse(section, str(path))
    return Config()


def parse(table: Mapping[str, Any], path: str) -> Config:
    """The value of a `[tool.hwal.lint]` table."""
    where = f"{path} [tool.hwal.lint]"
    for key in table:
        if key not in KEYS:
            near = nearest(key, KEYS)
            raise UsageError(f"unknown key {key!r}", where=where, hint=f"did you mean {near}?" if near else ", ".join(KEYS))
    target = table.get("target")
    if target is not None and target not in TARGETS:
        raise UsageError(f"target {target!r} is none", where=where, hint=", ".join(TARGETS))
    ignores = table.get("per-file-ignores", {})
    if not isinstance(ignores, dict):
        raise UsageError(
            "per-file-ignores must be a table", where=where, hint='per-file-ignores = { "scripts/*" = ["XLA002"] }'
        )
    baseline = table.get("baseline")
    if baseline is not None and not isinstance(baseline, str):
        raise UsageError("baseline must be a path", where=where, hint='baseline = "lint-baseline.json"')
    exclude = table.get("exclude", [])
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        raise UsageError("exclude must be a list of patterns", where=where, hint='exclude = ["templates/*"]')
    return Config(
        exclude=tuple(exclude),
        root=str(Path(path).parent),
        target=target,
        select=_codes(table.get("select", []), "select", where),
        ignore=_codes(table.get("ignore", []), "ignore", where),
        per_file_ignores={pattern: _codes(codes, f"per-file-ignores {pattern!r}", where) for pattern, codes in ignores.items()},
        tf_version=version(table["tf-version"], where) if "tf-version" in table else Config.tf_version,
        baseline=str(Path(path).parent / baseline) if baseline else None,
    )


def _codes(value: object, key: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        raise UsageError(f"{key} must be a list of codes", where=where, hint=f'{key.split()[0]} = ["XLA"]')
    codes = tuple(code.upper() for code in value)
    check_codes(codes, where)
    return codes


def version(text: object, where: str) -> tuple[int, int]:
    """`2.15` as (2, 15)."""
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\..*)?", text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"{text!r} is no version of TensorFlow", where=where, hint='"2.18"')
    return int(match[1]), int(match[2])
