"""Whose run a folder holds: a run remembers its script, so that `--resume SCRIPT` finds it again."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from hwal.errors import RecordError
from hwal.record import parse_json

FILE = "run.json"


def remember(run_dir: Path, script: str) -> None:
    """Leaves the run's script in run_dir/run.json; nothing for a program that stands in no file. Raises OSError."""
    from hwal.aside import write_file  # a start-up need not read the module

    program = _recipe(script) or (named(script, run_dir) if Path(script).is_file() else None)
    if program is not None:
        write_file(run_dir / FILE, json.dumps({"script": program}) + "\n")


def named(script: str, run_dir: Path) -> str:
    """A script by its way from the run's folder: both may move together, and the working folder is of no account."""
    path = Path(script).resolve()
    try:
        return Path(os.path.relpath(path, run_dir.resolve())).as_posix()
    except ValueError:  # on another drive
        return path.as_posix()


def is_of(run_dir: Path, script: str, name: str) -> bool:
    """Whether a folder's run is one of `script`, a path or `-m MODULE`. `name`: what such runs' folders are called, which
    decides where a run does not tell, having been left by a version that did not."""
    try:
        document = parse_json((run_dir / FILE).read_bytes(), str(run_dir / FILE))
    except (OSError, RecordError):
        return is_called(run_dir, name)
    program = document.get("script") if isinstance(document, dict) else None
    return bool(program == (script if script.startswith("-m ") else named(script, run_dir)))


def is_called(run_dir: Path, name: str) -> bool:
    """Whether a folder is called runs/NAME or runs/NAME-2."""
    return run_dir.name == name or run_dir.name.removeprefix(f"{name}-").isdigit()


def folder_name(text: str) -> str:
    """`text` as one folder's name: letters, digits, dots, dashes; nothing that could leave the folder."""
    return re.sub(r"[^\w.\-]+", "-", text).strip(".-")[:80]


def _recipe(script: str) -> str | None:
    """`-m MODULE` where the program is a module of hwal's own, which lies elsewhere in another environment."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.origin != script or not spec.name.startswith("hwal_"):
        return None
    return f"-m {spec.name}"
