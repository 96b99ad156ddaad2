"""The graphs that XLA has compiled, kept from run to run: a TPU's take minutes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hwal.env import XLA_CACHE, cache_folder
from hwal.values import World

OFF = "off"


def folder(environ: Mapping[str, str], world: World, virtual: bool) -> Path | None:
    """Where this process keeps its graphs, each of several on a host its own; None where it keeps none.

    XLA's CPU platform does not read back what it has written (torch_xla 2.8.1: "Deserializing serialized executable not
    supported"), so that it is used there only where the variable names a folder.
    """
    asked = environ.get(XLA_CACHE)
    if asked == OFF or (asked is None and virtual):
        return None
    path = Path(asked).expanduser() if asked else cache_folder(environ) / "xla"
    return path / f"process-{world.local_rank}" if world.local_size > 1 else path


def make(path: Path) -> str | None:
    """Makes the folder; why it cannot be written to, if so."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"compiled graphs are not kept: {path}: {error.strerror}"
    return None if os.access(path, os.W_OK) else f"compiled graphs are not kept: {path} cannot be written to"
