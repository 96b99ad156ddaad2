"""A run's folder: metrics.jsonl, checkpoints/, plan.json, logs/."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from hwal.env import RUN_DIR, Settings
from hwal.errors import OutputError, UsageError
from hwal.launch.world import job_id, starts_again
from hwal.values import SLICE, World

RUNS = Path("runs")
TRACES = ("metrics.jsonl", "checkpoints", "plan.json", "preempted.json")


def choose_run_dir(settings: Settings, stem: str, world: World, environ: Mapping[str, str], joins: bool = False) -> Path:
    """Where the run called `stem` (its script's name) keeps its files. Raises UsageError and OutputError.

    HWAL_RUN_DIR, as the launcher set it; else --out, which must not hold another run; else the run that --resume goes on
    with (a single checkpoint begins a run of its own); else runs/STEM, or the first free of runs/STEM-2, -3 … when it is
    there already. Ranks that another launcher started cannot agree on what is free: their folder is named after the job.

    `joins`: this machine may join a run that is at work on others; its ranks see whether it does (refuse_second).
    """
    if environ.get(RUN_DIR):
        return Path(environ[RUN_DIR])
    if settings.out is not None:
        out = Path(settings.out)
        goes_on = settings.resume is not None and out.resolve() in (Path(settings.resume) / "it").resolve().parents
        if not (goes_on or joins or starts_again(environ)) and world.rank == 0:
            refuse_second(out, environ)
        return out
    if settings.resume is not None and not is_checkpoint(Path(settings.resume)):
        return Path(settings.resume)
    name = _clean(stem) or "run"
    if world.size > 1:
        if world.launcher == SLICE:
            raise UsageError(
                f"{world.size} machines need a folder for the run that is the same for all of them",
                where="--out",
                why="each has started on its own, and they cannot agree on one that is free",
                hint="--out DIR, on a disk that all of them have",
            )
        return RUNS / f"{name}-{_clean(job_id(environ, world) or 'job')}"
    try:
        return next(path for path in _candidates(name) if not (path.exists() or path.is_symlink()))
    except OSError as error:
        raise OutputError(
            f"cannot look into {RUNS}: {error.strerror}", where=str(RUNS), hint="choose a folder by --out"
        ) from None


def refuse_second(out: Path, environ: Mapping[str, str]) -> None:
    """Raises UsageError where a run has left files: another one must not begin there."""
    if out.is_dir() and holds_run(out):
        requeued = f"${{SLURM_RESTART_COUNT:+--resume {out}}} in the job script goes on with it, now that the job was requeued"
        raise UsageError(
            f"{out} already holds a run",
            where=f"--out {out}",
            why="a second one would write over its files",
            hint=requeued if environ.get("SLURM_RESTART_COUNT") else "--resume goes on with it; or choose another --out",
        )


def is_checkpoint(path: Path) -> bool:
    """Whether --resume names one checkpoint, and not a run."""
    from hwal.checkpoint import MANIFEST  # a start-up without --resume need not read the module

    return (path / MANIFEST).exists()


def holds_run(path: Path) -> bool:
    """Whether a run left files there, or something that is no folder stands in its place."""
    if not path.is_dir():
        return path.exists() or path.is_symlink()
    return any((path / trace).exists() for trace in TRACES)


def is_new(settings: Settings, world: World, environ: Mapping[str, str]) -> bool:
    """Whether choose_run_dir picked a name that nobody asked for, which must be nobody else's."""
    resumes = settings.resume is not None and not is_checkpoint(Path(settings.resume))
    return not environ.get(RUN_DIR) and settings.out is None and not resumes and world.size == 1


def make_run_dir(path: Path, new: bool = False) -> bool:
    """Makes the folder and tries that it can be written. Raises UsageError, for a disk that is full OutputError.

    False when it must be new and is not: another run took the name since it was chosen.
    """
    probe = path / f".write-{os.getpid()}"
    try:
        if new:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                return False
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except FileExistsError:
        raise UsageError(f"{path} is a file, not a folder", where="--out", hint="choose another --out") from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (OutputError if full else UsageError)(
            f"the run's folder {path} cannot be written: {error.strerror}",
            where="--out",
            hint="free space, or choose another --out" if full else "choose another --out",
        ) from None
    return True


def _candidates(name: str) -> Iterator[Path]:
    yield RUNS / name
    for number in count(2):
        yield RUNS / f"{name}-{number}"


def _clean(text: str) -> str:
    """`text` as one folder's name: letters, digits, dots, dashes; nothing that could leave the folder."""
    return re.sub(r"[^\w.\-]+", "-", text).strip(".-")[:80]
