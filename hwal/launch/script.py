"""Runs the user's script as `python SCRIPT` would, and shows an error of its own without hwal's frames."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from hwal.display import tell
from hwal.errors import EXIT_FAILED, HwalError, ScriptError, UsageError


def run_script(argv: Sequence[str]) -> None:
    """Runs `SCRIPT args…` or `-m MODULE args…` as __main__. Whatever it raises passes through."""
    import runpy

    if not argv or (argv[0] == "-m" and len(argv) < 2):
        raise UsageError("python -m hwal.worker needs a script", hint="hwal train SCRIPT starts it")
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    script = argv[0]
    if not Path(script).is_file():
        raise UsageError(f"there is no script {script}", where="hwal train")
    sys.argv = list(argv)
    if not sys.flags.safe_path:  # under -P or PYTHONSAFEPATH Python puts no folder there
        sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def name_of(argv: Sequence[str]) -> str:
    return argv[1] if argv[:1] == ["-m"] and len(argv) > 1 else argv[0] if argv else "the script"


def told(error: HwalError) -> list[str]:
    """What a person is shown of an error of hwal's: its text, and the script's line where it was the script's doing."""
    lines = f"hwal: error: {error}".split("\n")
    place = _script_line(error.__traceback__) if isinstance(error, ScriptError) else None
    return lines if place is None else [lines[0], f"  line:  {place}", *lines[1:]]


def install_excepthook(after: Callable[[BaseException, int], None]) -> None:
    """Under plain python, an error of hwal's is shown as hwal train shows it: without a traceback. `after` is then given the
    error, of whatever kind, and the exit code that it stands for.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, HwalError):
            tell("\n".join(told(error)))
        else:
            before(kind, error, trace)
        after(error, error.exit_code if isinstance(error, HwalError) else EXIT_FAILED)

    sys.excepthook = hook


def _script_line(trace: TracebackType | None) -> str | None:
    """`script.py:12, in main`: the innermost frame of the program itself."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "__main__":
            found = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}, in {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return found


def traceback_lines(error: BaseException) -> list[str]:
    """The traceback of `error` as Python prints it, without the frames of hwal and runpy.

    Where hwal's own code raised it, its frames stay: that is a defect of hwal's, and they say where.
    """
    import traceback

    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, error)
    return "".join(shown.format()).rstrip("\n").split("\n")


def _trim(shown: object, error: BaseException | None) -> None:
    import traceback

    pair = shown if isinstance(shown, traceback.TracebackException) else None
    while pair is not None and error is not None:
        ours = _ours(error.__traceback__)
        if len(ours) == len(pair.stack) and not all(ours):
            last = ours[-1]
            kept = [frame for frame, own in zip(pair.stack, ours, strict=True) if last or not own]
            pair.stack = traceback.StackSummary.from_list(kept[_leading(ours) if last else 0 :])
        if pair.__cause__ is not None:
            pair, error = pair.__cause__, error.__cause__
        else:
            pair, error = pair.__context__, error.__context__


def _ours(trace: TracebackType | None) -> list[bool]:
    """For each frame, outermost first: whether its code belongs to hwal or runpy."""
    found = []
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        found.append(package in ("hwal", "runpy") or package.startswith("hwal_"))
        trace = trace.tb_next
    return found


def _leading(ours: Sequence[bool]) -> int:
    """How many frames stand before the script's first."""
    return next((position for position, own in enumerate(ours) if not own), 0)
