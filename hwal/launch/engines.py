"""run: carries out a Launch. One file an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from hwal.display import tell
from hwal.env import PLAN, RUN_DIR
from hwal.errors import OutputError, UsageError
from hwal.launch.world import read_world
from hwal.values import Command, Launch

RUNNERS: Mapping[str, str] = {"direct": "hwal.launch.direct", "torchrun": "hwal.launch.parent"}
INLINE = 100_000  # bytes of one variable; Linux refuses 131072


def run(launch: Launch) -> int:
    """Starts what `launch` says and returns hwal's exit code; `direct` becomes the worker and does not return."""
    if launch.engine not in RUNNERS:
        raise UsageError(f"engine {launch.engine!r} cannot be run", hint=f"--engine {' or '.join(RUNNERS)}")
    if read_world({**os.environ, **launch.commands[0].env}).rank == 0:  # each rank of a world that it joins gets here
        for note in launch.notes:
            tell(f"hwal: note: {note}")
    launch = replace(launch, commands=tuple(_short(command) for command in launch.commands))
    engine = import_module(RUNNERS[launch.engine])
    code: int = engine.run(launch, os.environ)
    return code


def _short(command: Command) -> Command:
    """A plan too long for a variable goes into a file of the run's folder."""
    plan = command.env.get(PLAN, "")
    if len(plan.encode()) <= INLINE:
        return command
    path = Path(command.env[RUN_DIR]) / "launch-plan.json"
    try:
        path.write_text(plan, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}", where="--out", hint="free space, or another --out"
        ) from None
    return replace(command, env={**command.env, PLAN: str(path.absolute())})
