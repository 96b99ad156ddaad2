"""Folders, and small files, written aside: one appears whole under its name, or not at all, whatever happens meanwhile.

Until then a folder is called .NAME.PLACE-PID.tmp beside it, and what it replaces .NAME.PLACE-PID.old.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from hwal.host import Host

LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?:(?P<place>[0-9a-f]{8})-)?(?P<pid>\d+)\.(?P<kind>tmp|old)")
IDLE = 3600.0  # seconds without a write after which another machine's folder counts as left behind
BETWEEN = 1.0  # seconds that nobody takes between two renames


@cache
def place() -> str:
    """Where a process number means one process: this machine since it was started, and this container on it."""
    known = [Host().name or ""]
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return sha256("".join(known).encode()).hexdigest()[:8]


def aside(target: Path, kind: str = "tmp") -> Path:
    """This process's folder beside `target`."""
    return target.with_name(f".{target.name}.{place()}-{os.getpid()}.{kind}")


def replace_folder(source: Path, target: Path) -> None:
    """Renames `source` to `target`. A folder cannot replace one that is not empty, so an old one is first renamed aside,
    from where tidy() fetches it back after a kill between the two renames."""
    old = aside(target, "old")
    if target.exists():
        target.rename(old)
    source.rename(target)
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_file(path: Path, text: str) -> None:
    """Writes a small file, in place of the one before. Raises OSError; that one stays then."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")  # as JSON says what is no text
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def tidy(folder: Path, name: str | None = None) -> None:
    """Clears up after killed processes: removes what they left half-written, and puts back what they were replacing.

    Of one target when its `name` is given, else of all in the folder. What another process may still be writing stays.
    """
    for path, match in _leftovers(folder):
        if name is not None and match["name"] != name:
            continue
        target = path.with_name(match["name"])
        if match["kind"] == "old" and not target.exists():
            if _between(match, target):
                with suppress(OSError):
                    path.rename(target)
        elif _abandoned(match, path):
            shutil.rmtree(path, ignore_errors=True)


def _leftovers(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return
    for path in paths:
        if match := LEFTOVER.fullmatch(path.name):
            yield path, match


def _here(match: re.Match[str]) -> bool:
    return match["place"] == place()


def _ended(match: re.Match[str]) -> bool:
    """Whether a process of this place has ended; this one's own folders are from an earlier attempt."""
    return int(match["pid"]) == os.getpid() or not alive(int(match["pid"]))


def _abandoned(match: re.Match[str], path: Path) -> bool:
    """Whether nobody writes there any more. Processes elsewhere cannot be asked: their folders show when they did."""
    return _ended(match) if _here(match) else time.time() - _last_write(path) > IDLE


def _between(match: re.Match[str], target: Path) -> bool:
    """Whether a process ended between its two renames: a living one is there for an instant only."""
    if _here(match):
        return _ended(match)
    time.sleep(BETWEEN)
    return not target.exists()


def _last_write(folder: Path) -> float:
    """When anything in a folder last changed, as Unix time."""
    times = [0.0]
    for path in [folder, *folder.rglob("*")]:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def alive(pid: int) -> bool:
    """Whether a process of that number runs here. False on Windows, where asking would end it."""
    if os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def born(pid: int) -> int | None:
    """When a process began, in the ticks of its system: with its number it means one process, also once the number belongs to
    another. None where there is none, or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def sync(folder: Path) -> None:
    """Asks the disk to hold every file of a folder, and the folder's own list of names."""
    for path in [*folder.rglob("*"), folder]:
        flush(path)


def flush(path: Path) -> None:
    """fsync of a file or folder, where the system can: Windows cannot flush a folder, some network file systems neither."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)
