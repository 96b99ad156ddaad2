"""Which checkpoint a run goes on from."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hwal.checkpoint import MANIFEST, Checkpoints, Manifest, verify
from hwal.env import spelled
from hwal.errors import CheckpointError

BEGUN = ("plan.json", "metrics.jsonl", "checkpoints")  # what a run leaves, from rt.prepare on


@dataclass(frozen=True)
class Found:
    """A checkpoint that is whole."""

    folder: Path
    manifest: Manifest

    @property
    def weights_bytes(self) -> int:
        """The size of its models' weights."""
        files = self.manifest.files.items()
        return sum(sums.bytes for name, sums in files if name.startswith("model") and name.endswith(".safetensors"))


def find(
    source: Path, own: Checkpoints, run_dir: Path, framework: str, say: Callable[[str], None], out: str | None = None
) -> Found | None:
    """The newest good checkpoint of the run in `source`, or the one that `source` is. `own`: those of `run_dir`'s run.

    None, which is told, where `source` is that run itself and nothing was saved in it: it begins from the start. `out`: what
    --out said; without it, a folder in which no run has left a file is a mistake.

    Raises CheckpointError.
    """
    found: tuple[Path, Manifest] | None
    if (source / MANIFEST).exists():
        try:
            found = source, verify(source)
        except CheckpointError as error:
            if error.hint is None and source.resolve().parent.name == "checkpoints":
                run = source.parent.parent
                error.hint = f"--resume {run} goes on from the newest of its checkpoints that is whole"
            raise
    else:
        checkpoints = own if source.resolve() == run_dir.resolve() else Checkpoints(source / "checkpoints")
        found = checkpoints.newest(say)
        if found is None and (damaged := len(checkpoints.found())):
            raise CheckpointError(
                f"all {damaged} checkpoint(s) of the run are damaged; the lines above say how",
                where=str(source),
                hint="start anew without --resume, into another --out",
            )
        if found is None and own is checkpoints and (out is not None or any((source / name).exists() for name in BEGUN)):
            say(f"nothing was saved in {source} yet: begins from the start")
            return None
    if found is None:
        raise CheckpointError(
            "there is no checkpoint to resume from" if source.exists() else "there is no such folder",
            where=str(source),
            hint="--resume takes the folder of a run (the one that holds metrics.jsonl and checkpoints/), or one checkpoint",
        )
    if found[1].framework != framework:
        raise CheckpointError(f"it was saved by a {found[1].framework} script", where=str(found[0]))
    return Found(*found)


def resume_command(command: str, run_dir: Path, flags: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """What to type to train as many steps again: what was given to a recipe's `flags` is given once more."""
    words = [*command.split(), "--resume", str(run_dir)]
    for name, value in vars(args).items():
        if name != "steps" and value != flags.get_default(name):
            flag = f"--{name.replace('_', '-')}"
            words += [word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))]
    return shlex.join([*words, "--steps", str(2 * args.steps)])


def source_of(run_dir: Path, resumed: str | None) -> Path | None:
    """What there is to go on from: the run itself, once it has saved, else what it was to go on from."""
    return next((folder for folder in (run_dir, *([Path(resumed)] if resumed else [])) if is_saved(folder)), None)


def after_failure(run_dir: Path, resumed: str | None, environ: Mapping[str, str] | None = None) -> str | None:
    """What a run that failed says of what there is to go on from, if anything. `environ`: as in hwal.env.spelled."""
    source = source_of(run_dir, resumed)
    if source is None:
        return None
    return f"hwal: the last finished checkpoint is whole: go on with {spelled('resume', source, environ)}"


def is_saved(folder: Path) -> bool:
    """Whether there is a checkpoint, or it is one itself."""
    return (folder / MANIFEST).exists() or any(folder.glob("checkpoints/step-*"))
