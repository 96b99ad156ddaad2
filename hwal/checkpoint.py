"""Where checkpoints live and how one becomes whole: written aside, checksummed, renamed. What is inside is the framework's.

run_dir/checkpoints/step-00000100/
    hwal.json          position, versions, sha256 and size of every other file; written last
    model.safetensors  …
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwal.errors import CheckpointError, OutputError, UsageError
from hwal.record import Record

MANIFEST = "hwal.json"
PREEMPTED = "preempted.json"


@dataclass(frozen=True)
class Position(Record):
    """Where a run stands. Random state is a function of (seed, step), so this is all of it.

    Attributes:
        epoch: the epoch in progress, from 0. step_in_epoch: global batches of it that are done.
        step: global batches done. samples: samples done. world_size: ranks that saved it.
    """

    seed: int
    epoch: int
    step_in_epoch: int
    step: int
    samples: int
    world_size: int


@dataclass(frozen=True)
class FileSum(Record):
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest(Record):
    """What makes a folder a checkpoint. `versions` maps package -> version; `about` is the framework's own."""

    position: Position
    files: Mapping[str, FileSum]
    framework: str
    versions: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    format: int = 1


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: str | None = None) -> None:
        self.folder = folder
        self.keep = keep_last(keep)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    @contextmanager
    def writing(self, target: Path, manifest: Callable[[dict[str, FileSum]], Manifest]) -> Iterator[Path]:
        """Yields an empty folder to write into; on a clean exit it becomes `target`, and old checkpoints are removed.

        Raises OutputError when the disk is full or the folder cannot be written. The previous checkpoint stays whole.
        """
        aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            files = {str(path.relative_to(aside)): checksum(path) for path in sorted(aside.rglob("*")) if path.is_file()}
            (aside / MANIFEST).write_text(manifest(files).to_json(indent=1), encoding="utf-8")
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
            self.retain()

    def found(self) -> list[Path]:
        """Finished checkpoint folders, newest first."""
        try:
            folders = [path for path in self.folder.iterdir() if path.name.startswith("step-") and path.is_dir()]
        except OSError:
            return []
        return sorted(folders, reverse=True)

    def newest(self, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest checkpoint whose files all match their checksums; says which were skipped and why."""
        for folder in self.found():
            try:
                return folder, verify(folder)
            except CheckpointError as error:
                say(f"skipped {folder}: {error.what}")
        return None

    def retain(self) -> None:
        """Removes finished checkpoints beyond those to keep, and folders that a killed process left half-written."""
        if self.keep is not None:
            for folder in self.found()[self.keep :]:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def mark_preempted(run_dir: Path, signal: str, step: int) -> None:
        import json

        (run_dir / PREEMPTED).write_text(json.dumps({"signal": signal, "step": step}) + "\n", encoding="utf-8")


def keep_last(rule: str | None) -> int | None:
    """How many checkpoints `--keep` leaves; None for all."""
    rule = rule or "last:3"
    if rule == "all":
        return None
    kind, _, number = rule.partition(":")
    if kind != "last" or not number.isdigit() or int(number) < 1:
        raise UsageError(f"--keep {rule} is not a rule", where="--keep", hint="--keep last:3, or --keep all")
    return int(number)


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose every file is there with the right size and checksum. Raises CheckpointError."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError:
        raise CheckpointError("it has no manifest: it was never finished", where=str(path)) from None
    except UsageError as error:
        raise CheckpointError(f"its manifest is damaged: {error.what}", where=str(path)) from None
    for name, expected in manifest.files.items():
        try:
            found = checksum(folder / name)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read: {error.strerror}", where=str(folder)) from None
        if found != expected:
            raise CheckpointError(f"{name} is not the file that was saved (its checksum differs)", where=str(folder))
    return manifest


def checksum(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileSum(path.stat().st_size, digest.hexdigest())


def sync(folder: Path) -> None:
    """Asks the disk to hold every file of a folder, and the folder's own list of names."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_folder(source: Path, target: Path) -> None:
    """Renames `source` to `target`. A folder cannot replace one that is not empty, so an old one is first renamed aside."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
