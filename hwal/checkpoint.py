"""Where checkpoints live and how one becomes whole: written aside, checksummed, renamed. What is inside is the framework's.

run_dir/checkpoints/step-00000100/
    hwal.json          position, versions, sha256 and size of every other file; written last
    model.safetensors  …
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hwal.errors import CheckpointError, OutputError, UsageError
from hwal.record import Record

MANIFEST = "hwal.json"
PREEMPTED = "preempted.json"
FORMAT = 1

FINISHED = re.compile(r"step-(\d+)")
LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.(?P<kind>tmp|old)")  # being written, or being replaced


@dataclass(frozen=True)
class Position(Record):
    """Where a run stands. Random state is a function of (seed, step), so this is all of it.

    Attributes:
        epoch: the epoch in progress, from 0. feed: the training feed of it in progress, from 0. steps_in_feed,
            samples_in_feed: global batches and samples of that feed that are done.
        step: global batches done. samples: samples done. world_size: ranks that saved it.
    """

    seed: int
    epoch: int
    feed: int
    steps_in_feed: int
    samples_in_feed: int
    step: int
    samples: int
    world_size: int


@dataclass(frozen=True)
class FileSum(Record):
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest(Record):
    """What makes a folder a checkpoint.

    Attributes:
        files: path inside the folder, with forward slashes -> size and checksum.
        versions: package -> version. about: the framework's own.
        digest: sha256 of the manifest itself, printed with this field empty.
    """

    position: Position
    files: Mapping[str, FileSum]
    framework: str
    versions: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT
    digest: str = ""

    def sealed(self) -> Manifest:
        """The same with its digest."""
        return replace(self, digest=hashlib.sha256(replace(self, digest="").to_json().encode()).hexdigest())


class Checkpoints:
    """The checkpoints of one run. One process writes into its folder."""

    def __init__(self, folder: Path, keep: str | None = None) -> None:
        self.folder = folder
        self.keep = keep_last(keep)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    @contextmanager
    def writing(self, target: Path, manifest: Callable[[dict[str, FileSum]], Manifest]) -> Iterator[Path]:
        """Yields an empty folder to write into; on a clean exit it becomes `target`, and old checkpoints are removed.

        Raises OutputError when the disk is full, the folder cannot be written, or `target` holds something else than a
        checkpoint. The previous checkpoint stays whole.
        """
        if target.parent != self.folder and _holds_other_things(target):
            raise OutputError(
                f"{target} holds other things than a checkpoint",
                where=f"rt.save({str(target)!r})",
                why="a checkpoint takes the place of the whole folder",
                hint="a path of its own, or rt.save() without one",
            )
        aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            tidy(target.parent, target.name)
            aside.mkdir(parents=True)
            yield aside
            files = {path.relative_to(aside).as_posix(): checksum(path) for path in sorted(aside.rglob("*")) if path.is_file()}
            (aside / MANIFEST).write_text(manifest(files).sealed().to_json(indent=1), encoding="utf-8")
            sync(aside)
            replace_folder(aside, target)
        except OSError as error:
            raise OutputError(
                f"the checkpoint could not be written: {error.strerror or error}",
                where=str(target),
                why="earlier checkpoints are untouched",
                hint="free space or choose another --out, then go on with --resume",
            ) from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        if target.parent == self.folder:
            self.retain(target)

    def found(self) -> list[Path]:
        """Finished checkpoint folders, newest first."""
        try:
            names = {path: FINISHED.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir()}
        except OSError:
            return []
        steps = {path: int(match[1]) for path, match in names.items() if match}
        return sorted(steps, key=lambda path: steps[path], reverse=True)

    def newest(self, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest checkpoint whose files all match their checksums; says which were skipped and why."""
        tidy(self.folder)
        for folder in self.found():
            try:
                return folder, verify(folder)
            except CheckpointError as error:
                say(f"skipped {folder}: {error.what}")
        return None

    def retain(self, written: Path) -> None:
        """Removes finished checkpoints beyond those to keep. The one just written stays, whatever its number: newer ones
        beside it can only be damaged, or the run would have gone on from them."""
        if self.keep is not None:
            found = self.found()
            room = self.keep - (written in found)
            for folder in [path for path in found if path != written][room:]:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def clear_preempted(run_dir: Path) -> None:
        """A run that goes on is no longer preempted."""
        with suppress(OSError):
            (run_dir / PREEMPTED).unlink(missing_ok=True)

    @staticmethod
    def mark_preempted(run_dir: Path, signal: str, step: int) -> None:
        import json

        path = run_dir / PREEMPTED
        try:
            path.write_text(json.dumps({"signal": signal, "step": step}) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"{PREEMPTED} could not be written: {error.strerror or error}", where=str(path)) from None


def keep_last(rule: str | None) -> int | None:
    """How many checkpoints `--keep` leaves; None for all."""
    rule = rule or "last:3"
    if rule == "all":
        return None
    kind, _, number = rule.partition(":")
    if kind != "last" or not number.isdecimal() or int(number) < 1:
        raise UsageError(f"--keep {rule} is not a rule", where="--keep", hint="--keep last:3, or --keep all")
    return int(number)


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose every file is there with the right size and checksum. Raises CheckpointError."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError:
        raise CheckpointError("it has no manifest: it was never finished", where=str(path)) from None
    except (UsageError, UnicodeDecodeError) as error:
        raise CheckpointError(f"its manifest is damaged: {error}", where=str(path)) from None
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"it is of format {manifest.format}, and this version reads format {FORMAT}", where=str(path), hint="upgrade hwal"
        )
    if manifest != manifest.sealed():
        raise CheckpointError("its manifest is damaged: it does not match its digest", where=str(path))
    for name, expected in manifest.files.items():
        try:
            found = checksum(folder / name)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read: {error.strerror}", where=str(folder)) from None
        if found != expected:
            raise CheckpointError(f"{name} is not the file that was saved (its checksum differs)", where=str(folder))
    return manifest


def _holds_other_things(path: Path) -> bool:
    if not path.is_dir():
        return path.exists()
    return not (path / MANIFEST).exists() and any(path.iterdir())


def checksum(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileSum(path.stat().st_size, digest.hexdigest())


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


def replace_folder(source: Path, target: Path) -> None:
    """Renames `source` to `target`. A folder cannot replace one that is not empty, so an old one is first renamed aside,
    from where tidy() fetches it back after a kill between the two renames."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    source.rename(target)
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def tidy(folder: Path, name: str | None = None) -> None:
    """Clears up after killed processes: removes what they left half-written, and puts back what they were replacing.

    Of one checkpoint when its `name` is given, else of all in the folder. Several ranks may do this at once.
    """
    try:
        matches = {path: LEFTOVER.fullmatch(path.name) for path in folder.iterdir()}
    except OSError:
        return
    for path, match in matches.items():
        if match is None or (name is not None and match["name"] != name):
            continue
        if int(match["pid"]) != os.getpid() and alive(int(match["pid"])):
            continue
        target = path.with_name(match["name"])
        if match["kind"] == "old" and not target.exists():
            with suppress(OSError):
                path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


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
