"""Every error hwal raises on purpose.

    HwalError                 exit 1
    ├── UsageError            exit 2   a flag, variable or file the user gave is wrong
    │   ├── TargetError                the text of --device, or a device that is not here
    │   └── RecordError                JSON that is not the value it should be
    ├── DeviceError           exit 2   no such device, or one that is blocked
    ├── VersionError          exit 2   an installed package is missing or of a wrong version
    ├── PlanError             exit 2   a plan whose numbers do not fit; shows the equation
    ├── OutputError           exit 1   a folder or file cannot be written, or the disk is full
    ├── CheckpointError       exit 1   a checkpoint is missing, incomplete or corrupt
    ├── WorldError            exit 1   the ranks asked for are not the ranks that answered
    │   └── LostRankError              a rank that others wait for is gone
    └── ScriptError           exit 1   the user's script, or how it uses the Runtime
        └── ShortageError              a line of it wants more memory than there is

    Preempted                 exit 75  not an error: a checkpoint is on disk, run again with --resume

An error says what is wrong, where, why, and what to do now. It is printed without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PREEMPTED = 75


class HwalError(Exception):
    """What is wrong, in one sentence; with where it stands, why, and a command or edit that helps."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        rows = [("where", self.where), ("why", self.why), ("try", self.hint)]
        return "\n".join([self.what, *(f"  {label + ':':<7}{text}" for label, text in rows if text)])


class UsageError(HwalError):
    exit_code = EXIT_USAGE


class TargetError(UsageError):
    pass


class RecordError(UsageError):
    pass


class DeviceError(HwalError):
    exit_code = EXIT_USAGE


class VersionError(HwalError):
    exit_code = EXIT_USAGE


class PlanError(HwalError):
    exit_code = EXIT_USAGE


class OutputError(HwalError):
    pass


class CheckpointError(HwalError):
    pass


class WorldError(HwalError):
    pass


class LostRankError(WorldError):
    pass


class ScriptError(HwalError):
    pass


class ShortageError(ScriptError):
    pass


class Preempted(SystemExit):
    """Ends the script after a signal, once a checkpoint is on disk. A SystemExit, so that `except Exception` lets it pass.

    `signal` is the name of the one that ended this rank by itself, when there was nothing to save; None where all ranks agreed.
    `told`: whether the Runtime has said so, and set the code.
    """

    def __init__(self, code: int = EXIT_PREEMPTED, signal: str | None = None) -> None:
        super().__init__(code)
        self.signal = signal
        self.told = False


def nearest(text: str, known: Iterable[str]) -> str | None:
    """The known name that `text` was most likely meant to be, or None."""
    from difflib import get_close_matches  # 3 ms, and only errors need it

    found = get_close_matches(text.lower(), list(known), n=1, cutoff=0.5)
    return found[0] if found else None
