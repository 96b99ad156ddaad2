"""A run's folder: metrics.jsonl, checkpoints/, plan.json, logs/."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from hwal.env import RUN_DIR, Settings
from hwal.errors import OutputError, UsageError
from hwal.launch.world import job_id, starts_again
from hwal.provenance import folder_name, is_called, is_of
from hwal.values import SLICE, World

RUNS = Path("runs")


def choose_run_dir(settings: Settings, stem: str, world: World, environ: Mapping[str, str], joins: bool = False) -> Path:
    """Where the run called `stem` (its script's name) keeps its files. Raises UsageError and OutputError.

    HWAL_RUN_DIR, as the launcher set it; else --out, which must not hold another run; else the run that --resume goes on
    with (a single checkpoint begins a run of its own); else runs/STEM, or the first free of runs/STEM-2, -3 … when it is
    there already. Ranks that another launcher started cannot agree on what is free: their folder is named after the job.

    `joins`: this machine may join a run that is at work on others; its ranks see whether it does (refuse_second).
    """
    if environ.get(RUN_DIR):
        return Path(environ[RUN_DIR])
    before = None if settings.resume is None else Path(settings.resume)
    out = None if settings.out is None else Path(settings.out)
    if before is not None and not before.is_dir() and (out is None or out.resolve() != before.resolve()):
        raise UsageError(
            f"there is no run at {before}",
            where=f"--resume {before}",
            hint=f"--resume DIR, the folder of a run; --out {before} --resume begins one where there is none yet",
        )
    if out is not None:
        goes_on = before is not None and out.resolve() in (before / "it").resolve().parents
        if not (goes_on or joins or starts_again(environ)) and world.rank == 0:
            refuse_second(out, environ)
        return out
    if before is not None and not is_checkpoint(before):
        return before
    name = _name(stem)
    if world.size > 1:
        if world.launcher == SLICE:
            raise UsageError(
                f"{world.size} machines need a folder for the run that is the same for all of them",
                where="--out",
                why="each has started on its own, and they cannot agree on one that is free",
                hint="--out DIR, on a disk that all of them have",
            )
        return RUNS / f"{name}-{folder_name(job_id(environ, world) or 'job')}"
    try:
        return next(path for path in _candidates(name) if not (path.exists() or path.is_symlink()))
    except OSError as error:
        raise OutputError(
            f"cannot look into {RUNS}: {error.strerror}", where=str(RUNS), hint="choose a folder by --out"
        ) from None


def newest_run(script: str, stem: str) -> tuple[Path | None, str]:
    """Of the runs in runs/ that are `script`'s (a path, or `-m MODULE`), the one that was last saved. None where there is none;
    the text says why. `stem`: what choose_run_dir calls its runs."""
    name = _name(stem)
    runs = [folder for folder in sorted(RUNS.glob("*")) if folder.is_dir()]
    own = [folder for folder in runs if is_of(folder, script, name)]
    saved = [folder for folder in own if any(folder.glob("checkpoints/step-*"))]
    if saved:
        return max(saved, key=lambda folder: (folder / "checkpoints").stat().st_mtime), ""
    why = f"none of its {len(own)} run(s) in {RUNS} has a checkpoint" if own else f"no run of it in {RUNS}"
    others = [folder for folder in runs if folder not in own and is_called(folder, name)]
    return None, why + (f"; {others[-1]} is another script's" if others else "")


def refuse_second(out: Path, environ: Mapping[str, str]) -> None:
    """Raises UsageError where a run has left files: another one must not begin there."""
    if out.is_dir() and holds_run(out):
        begins = "" if any((out / "checkpoints").glob("step-*")) else ", from the start, since it holds no checkpoint"
        requeued = f"${{SLURM_RESTART_COUNT:+--resume {out}}} in the job script goes on with it, now that the job was requeued"
        raise UsageError(
            f"{out} already holds a run",
            where=f"--out {out}",
            why="a second one would write over its files",
            hint=requeued
            if environ.get("SLURM_RESTART_COUNT")
            else f"--resume goes on with it{begins}; or choose another --out",
        )


def is_checkpoint(path: Path) -> bool:
    """Whether --resume names one checkpoint, and not a run."""
    from hwal.checkpoint import MANIFEST  # a start-up without --resume need not read the module

    return (path / MANIFEST).exists()


def holds_run(path: Path) -> bool:
    """Whether a run has saved something or done a step there, or something that is no folder stands in its place. What a start
    leaves that came to no step is no run.
    """
    if not path.is_dir():
        return path.exists() or path.is_symlink()
    metrics, checkpoints = path / "metrics.jsonl", path / "checkpoints"
    if metrics.exists() and metrics.stat().st_size > 0:
        return True
    return checkpoints.is_dir() and any(not entry.name.startswith(".") for entry in checkpoints.iterdir())


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


def _name(stem: str) -> str:
    return folder_name(stem) or "run"


def _candidates(name: str) -> Iterator[Path]:
    yield RUNS / name
    for number in count(2):
        yield RUNS / f"{name}-{number}"
