"""Settings whose promise this version does not keep yet: refused, so that nobody believes they are at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hwal.env import SETTINGS, Settings
from hwal.errors import UsageError

LATER: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "no_fallback": (bool, "leave it out: no device of this version has operators that fall back to the CPU"),
}
"""Field of Settings -> (which values are not supported yet, what to do instead)."""


def is_later(field: str) -> bool:
    """Whether a setting as a whole comes later, and not just some of its values."""
    return field in LATER and LATER[field][0](True)


def refuse_later(settings: Settings) -> None:
    """Raises UsageError for a setting that comes with a later version."""
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        unsupported, instead = LATER.get(setting.field, (None, ""))
        if unsupported is not None and unsupported(value):
            shown = setting.flag + ("" if value is True else f" {value}")
            raise UsageError(f"{shown} comes with a later version of hwal", where=shown, hint=instead)
