"""Which framework a script is written in: `--framework`, else its import statements, else torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hwal.errors import UsageError, nearest
from hwal.values import Decision

FRAMEWORKS = ("torch", "keras")
OWN = {"torch": "torch", "keras": "keras", "tensorflow": "keras", "tf_keras": "keras"}
HINTS = {"transformers": "torch", "lightning": "torch", "pytorch_lightning": "torch", "accelerate": "torch"}


def read_source(script: str) -> str:
    """The text of a script. Raises UsageError, naming the file that was most likely meant."""
    path = Path(script)
    where = f"hwal train {script}"
    if path.is_dir():
        raise UsageError(f"{script} is a folder, not a script", where=where, hint=_a_script_in(path))
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{script} is a notebook, not a script",
            where=where,
            hint="call hwal.start() in a cell, or make a script of it: jupyter nbconvert --to script " + script,
        )
    if path.exists() and (not path.is_file() or str(path.parent) in ("/dev", "/dev/fd")):  # read but once
        raise UsageError(
            f"{script} is no plain file",
            where=where,
            why="every rank reads the script anew, from its path",
            hint="write it into a file: hwal train script.py",
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no script {script}", where=where, hint=_meant(path)) from None
    except OSError as error:
        raise UsageError(f"cannot read {script}: {error.strerror}", where=where) from None
    import tokenize  # a script may name its encoding in its first lines; utf-8 else
    from io import BytesIO

    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        raise UsageError(f"{script} is not Python text", where=where) from None


def framework_of(source: str | None, script: str | None, asked: str | None) -> Decision:
    """torch or keras, with the reason. `source` is the script's text, None for the built-in recipe.

    Raises UsageError when both are imported and none was asked for, and when the script is not valid Python.
    """
    if asked is not None:
        if asked not in FRAMEWORKS:
            near = nearest(asked, [*FRAMEWORKS, "tensorflow"])
            raise UsageError(
                f"unknown framework {asked!r}; there are {' and '.join(FRAMEWORKS)}",
                where=f"--framework {asked}",
                hint=f"--framework {OWN[near]}" if near else None,
            )
        return Decision(asked, "asked for by --framework")
    if source is None:
        return Decision("torch", "the built-in recipe is written in it")
    name = script or "the script"
    packages = list(dict.fromkeys(_imports(source, name)))
    own = {OWN[package]: package for package in reversed(packages) if package in OWN}
    if len(own) > 1:
        raise UsageError(
            f"{name} imports both {own['torch']} and {own['keras']}: which of them trains?",
            where=name,
            hint="--framework torch, or --framework keras",
        )
    for framework, package in own.items():
        return Decision(framework, f"{name} imports {package}")
    for package in packages:
        if package in HINTS:
            return Decision(HINTS[package], f"{name} imports {package}")
    return Decision("torch", f"{name} imports no framework by name, and torch is the default")


def _imports(source: str, name: str) -> Iterator[str]:
    """Top-level packages of every import statement, wherever it stands; relative imports are the script's own."""
    try:
        tree = ast.parse(source, name)
    except SyntaxError as error:
        line = f"{name}:{error.lineno}" if error.lineno else name
        shown = (error.text or "").strip()
        raise UsageError(f"{name} is not valid Python: {error.msg}", where=line, why=shown or None) from None
    except ValueError as error:  # a null byte
        raise UsageError(f"{name} is not valid Python: {error}", where=name) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _meant(path: Path) -> str | None:
    """`did you mean …?`: the script nearest in name in the same folder, or what is wrong with the folder."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    near = nearest(path.name, [entry.name for entry in folder.iterdir() if entry.suffix == ".py"])
    return f"did you mean {folder / near}?" if near else None


def _a_script_in(folder: Path) -> str | None:
    scripts = sorted(entry.name for entry in folder.glob("*.py"))
    preferred = [name for name in ("train.py", "main.py", "__main__.py") if name in scripts] or scripts
    return f"hwal train {folder / preferred[0]}" if preferred else None
