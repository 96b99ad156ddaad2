"""Where checkpoints live and how one becomes whole: written aside, checksummed, renamed. What is inside is the framework's.

run_dir/checkpoints/step-00000100/
    hwal.json          position, metrics, versions, sha256 and size of every other file; written last
    model.safetensors  …
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hwal.aside import aside, replace_folder, sync, tidy, write_file
from hwal.errors import CheckpointError, OutputError, RecordError
from hwal.record import Record, parse_json
from hwal.retention import kept, read_keep

MANIFEST = "hwal.json"
PREEMPTED = "preempted.json"
FORMAT = 2  # 1 had no metrics, its tensors in two files, and nothing of a module but its state; it is read too

FINISHED = re.compile(r"step-(\d+)")


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
        metrics: the values that --keep's metrics last had.
        digest: sha256 of the manifest itself, printed with this field empty.
    """

    position: Position
    files: Mapping[str, FileSum]
    framework: str
    versions: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    format: int = FORMAT
    digest: str = ""

    def sealed(self) -> Manifest:
        """The same with its digest."""
        return replace(self, digest=digest(self.to_dict()))


class Checkpoints:
    """The checkpoints of one run. One process makes and removes them; others may write into one that is in the making.

    Attributes:
        keep: which of them stay.
    """

    def __init__(self, folder: Path, keep: str | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        """`say` is told of checkpoints that cannot be removed."""
        self.folder = folder
        self.keep = read_keep(keep)
        self._say = say
        self._damaged: set[Path] = set()
        self._stuck: set[Path] = set()

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
        folder = aside(target)
        try:
            tidy(target.parent, target.name)
            folder.mkdir(parents=True)
            yield folder
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            files = {path.relative_to(folder).as_posix(): checksum(path) for path in paths}
            (folder / MANIFEST).write_text(manifest(files).sealed().to_json(indent=1), encoding="utf-8")
            sync(folder)
            replace_folder(folder, target)
        except OSError as error:
            before = self.found()
            raise OutputError(
                f"the checkpoint could not be written: {error.strerror or error}",
                where=str(target),
                why=f"earlier checkpoints are untouched; the newest is {before[0].name}" if before else None,
                hint="free space or choose another --out" + (", then go on with --resume" if before else ""),
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
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
                self._damaged.add(folder)
                say(f"skipped {folder}: {error.what}")
        return None

    def retain(self, written: Path) -> None:
        """Removes the finished checkpoints that the rule does not keep, now that this one has been written."""
        step_of = {path: int(path.name.partition("-")[2]) for path in self.found()}
        number = step_of.get(written)
        if number is None:  # a name of the user's own among them
            number = max(step_of.values(), default=0)
        self._damaged.discard(written)
        saved = {step: metrics_of(path) if self.keep.best else {} for path, step in step_of.items()}
        damaged = frozenset(step_of[path] for path in self._damaged if path in step_of)
        stays = kept(self.keep, saved, number, damaged)
        for path, step in step_of.items():
            if step not in stays:
                shutil.rmtree(path, ignore_errors=True)
                if path.exists() and path not in self._stuck:
                    self._stuck.add(path)
                    self._say(f"{path} cannot be removed, though --keep does not hold it: the disk may fill up")

    @staticmethod
    def clear_preempted(run_dir: Path) -> None:
        """A run that goes on is no longer preempted."""
        with suppress(OSError):
            (run_dir / PREEMPTED).unlink(missing_ok=True)

    @staticmethod
    def mark_preempted(run_dir: Path, signal: str, step: int) -> str | None:
        """Leaves the mark of a run that a signal ended; returns what is wrong where that cannot be: the checkpoint counts."""
        try:
            write_file(run_dir / PREEMPTED, json.dumps({"signal": signal, "step": step}) + "\n")
        except OSError as error:
            return f"{PREEMPTED} could not be written: {error.strerror}"
        return None


def digest(document: Mapping[str, Any]) -> str:
    """sha256 of a manifest as it stands in its file, but for the digest: of fields too that this version does not have."""
    text = json.dumps({**document, "digest": ""}, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError where it is missing, damaged or of a newer format."""
    path = folder / MANIFEST
    try:
        document = parse_json(path.read_text(encoding="utf-8"), str(path))
        newer = isinstance(document, dict) and isinstance(document.get("format"), int) and document["format"] > FORMAT
        if newer:
            raise CheckpointError(
                f"it is of format {document['format']}, and this version reads up to {FORMAT}",
                where=str(path),
                hint="upgrade hwal",
            )
        manifest = Manifest.from_dict(document, str(path))
        sealed = digest(document) == manifest.digest
    except OSError:
        raise CheckpointError("it has no manifest: it was never finished", where=str(path)) from None
    except (RecordError, ValueError) as error:
        raise CheckpointError(f"its manifest is damaged: {error}", where=str(path)) from None
    if not sealed:
        raise CheckpointError("its manifest is damaged: it does not match its digest", where=str(path))
    return manifest


def metrics_of(folder: Path) -> Mapping[str, float]:
    """The metrics in a checkpoint's manifest; none where it cannot be read."""
    try:
        return read_manifest(folder).metrics
    except CheckpointError:
        return {}


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose every file is there with the right size and checksum. Raises CheckpointError."""
    manifest = read_manifest(folder)
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
