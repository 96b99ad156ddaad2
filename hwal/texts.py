"""The text files that a recipe learns from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import glob, has_magic
from pathlib import Path
from zlib import crc32

from hwal.errors import UsageError, nearest

ELSE = "--data PATH, a text file or a folder of them; without --data it learns the English that Python carries"
BINARY_LOOK = 8192  # a NUL among this many first bytes makes a file binary


def documents(sources: Sequence[str], say: Callable[[str], None] = lambda text: None) -> list[bytes]:
    """The bytes of every text file that `sources` (files, folders, glob patterns) name; none: the text Python carries.

    In a folder, hidden and binary files are passed over, and `say` is told how many were binary. Raises UsageError when a
    source does not exist, a file named outright is binary or cannot be read, or there is no text in all of it.
    """
    if not sources:
        return [python_topics()]
    texts = []
    for source in sources:
        named = Path(source).is_file()
        binary = 0
        for path in files_of(source):
            text = _read(path)
            if b"\0" in text[:BINARY_LOOK]:
                if named:
                    raise UsageError(
                        f"{path} is not a text file", where=f"--data {source}", why="it has NUL bytes", hint="--data FILE.txt"
                    )
                binary += 1
            elif text.strip():
                texts.append(text)
        if binary:
            say(f"--data {source}: {binary} binary file{'s' if binary > 1 else ''} passed over")
    if not texts:
        raise UsageError(
            "there is no text to train on",
            where=f"--data {' '.join(sources)}",
            why="every file found is empty or binary",
            hint="--data FILE.txt",
        )
    return texts


def python_topics() -> bytes:
    """The English text of the `help()` topics that every Python carries: about 460 KB, in an order that mixes subjects."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics, key=lambda name: crc32(name.encode()))).encode()


def files_of(source: str) -> list[Path]:
    """The files that one --data argument names, sorted, so that every rank reads the same text. Raises UsageError."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not found:
            raise UsageError("the folder has no files", where=f"--data {source}", hint="--data FILE.txt")
        return found
    if has_magic(source):
        found = sorted(file for file in map(Path, glob(str(path), recursive=True)) if file.is_file())  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not found:
            raise UsageError(
                "no file matches the pattern", where=f"--data {source}", hint="--data '**/*.txt' looks into folders"
            )
        return found
    raise UsageError(f"no such data file: {source}", where=f"--data {source}", why=_why_missing(path), hint=_neighbour(path))


def _why_missing(path: Path) -> str | None:
    parent = path.parent
    return None if parent.is_dir() else f"there is no folder {parent}"


def _neighbour(path: Path) -> str:
    try:
        near = nearest(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:
        return ELSE
    return f"--data {path.parent / near}" if near else ELSE


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", where=f"--data {path}") from None
