"""--strategy FILE: read once, where a run begins: on the command line, or in hwal.start() under plain python."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from hwal.env import Settings
from hwal.errors import UsageError
from hwal.plan.strategy import is_file_name

if TYPE_CHECKING:  # a run without such a file does not load what reads it: the command line has a start-up budget
    from hwal.plan.fsdp_file import FsdpFile


def take_file(settings: Settings, explicit: Collection[str]) -> tuple[Settings, FsdpFile | None, tuple[str, ...]]:
    """The settings with what the file that --strategy names asks for; the file, if any; and what to say of it.

    `explicit` are the fields that a flag or variable gives: they win. Raises UsageError, VersionError.
    """
    name = settings.strategy
    if not is_file_name(name):
        return settings, None, ()
    from hwal.plan.fsdp_file import read_fsdp, with_file

    file = read_fsdp(_text(name), name)
    settings, notes = with_file(settings, file, explicit, name)
    return settings, file, (f"strategy {settings.strategy}, from {name}", *notes)


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the FSDP config file cannot be read: {getattr(error, 'strerror', None) or error}",
            where=f"--strategy {name}",
            hint="the path of a file that accelerate config wrote, or of a Trainer's fsdp_config",
        ) from None
