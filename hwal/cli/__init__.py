"""The command line: `hwal COMMAND …`. One file a command, imported when it is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module

from hwal import __version__
from hwal.errors import EXIT_FAILED, EXIT_OK, HwalError, OutputError, UsageError, nearest

COMMANDS: Mapping[str, str] = {
    "train": "train a script, or the built-in language model, on the device(s) here",
    "devices": "what hardware is here, what is blocked and why, and what auto would take",
    "doctor": "what is wrong with devices, versions and limits here, and what to do",
    "lint": "what XLA will not compile, or compiles again and again, before anything runs",
    "selftest": "prove hwal's promises on your own hardware and write a report of it",
}
"""Name -> one line. The module hwal.cli.NAME has `main(argv) -> exit code`."""

HELP = """\
usage: hwal COMMAND …

One training script, any hardware.

commands:
{commands}

  hwal COMMAND --help   flags and examples of one command
  hwal --version        the version

exit codes:
  0   done
  1   the script failed
  2   a wrong flag, or no such device
  75  stopped by a signal with a checkpoint on disk: go on with --resume

examples:
  hwal train                           the built-in recipe on the best device here
  hwal train --device cpu script.py    your script; what follows it is its own
  hwal devices                         what is here
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. Prints a HwalError without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    collecting = gc.isenabled()
    _open_closed_streams()
    gc.disable()  # a start-up makes no garbage worth looking for, and looking costs a twentieth of it
    try:
        code = _run(arguments)
    except HwalError as error:
        return _fail(error)
    except KeyboardInterrupt:
        tell("hwal: interrupted")
        return EXIT_FAILED
    except BrokenPipeError:  # nobody reads a run's words
        _to_nowhere()
        return EXIT_FAILED
    finally:
        if collecting:
            gc.enable()
    return code


def _open_closed_streams() -> None:
    """A stream that the caller closed (`>&-`) goes nowhere, for ranks too: else the next file opened would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _run(arguments: list[str]) -> int:
    if not arguments:
        raise UsageError(f"which command? There are {', '.join(COMMANDS)}", where="hwal", hint="hwal --help")
    first, *rest = arguments
    if first in ("-h", "--help"):
        commands = "\n".join(f"  {name:<11} {about}" for name, about in COMMANDS.items())
        show(HELP.format(commands=commands))
        return EXIT_OK
    if first == "--version":
        show(f"hwal {__version__}")
        return EXIT_OK
    if first not in COMMANDS:
        raise _unknown(first, rest)
    code: int = import_module(f"hwal.cli.{first}").main(rest)
    return code


def _unknown(first: str, rest: list[str]) -> UsageError:
    if first.endswith(".py"):
        return UsageError(f"{first!r} is no command", where=f"hwal {first}", hint=" ".join(["hwal train", first, *rest]))
    if first.startswith("-"):
        return UsageError(
            f"{first.partition('=')[0]} comes after a command; there are {', '.join(COMMANDS)}",
            where=f"hwal {first}",
            hint=f"hwal train {' '.join([first, *rest])}" if first.startswith("--") else "hwal --help",
        )
    near = nearest(first, COMMANDS)
    return UsageError(
        f"unknown command {first!r}; there are {', '.join(COMMANDS)}",
        where=f"hwal {first}",
        hint=f"did you mean {near}?" if near else "hwal --help",
    )


def unknown_argument(prog: str, token: str, flags: Iterable[str]) -> UsageError:
    """The error for a flag, or a word, that a command does not know."""
    name = token.partition("=")[0]
    if not name.startswith("-"):
        return UsageError(f"{prog} takes no {name!r}", where=f"{prog} … {name}", hint=f"{prog} --help")
    near = nearest(name, [flag for flag in flags if flag.startswith("--")]) if name.startswith("--") else None
    return UsageError(
        f"unknown flag {name}", where=f"{prog} … {token}", hint=f"did you mean {near}?" if near else f"{prog} --help"
    )


def show(text: str) -> None:
    """A command's answer, to stdout. Raises OutputError where it cannot be written, to a disk that is full say."""
    from hwal.display import printable

    try:
        print(printable(text.rstrip("\n"), sys.stdout), flush=True)
    except BrokenPipeError:  # the reader, `head` say, had enough of it
        _to_nowhere()
    except OSError as error:
        _to_nowhere()
        raise OutputError(
            f"the answer cannot be written: {error.strerror}", where="stdout", hint="free space, or another file behind >"
        ) from None


def tell(text: str) -> None:
    """Something about the command's work, to stderr: stdout is for its answer."""
    from hwal.display import tell as tell_person

    tell_person(text)


def _to_nowhere() -> None:
    """What stdout still holds back goes nowhere: the interpreter flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: HwalError) -> int:
    tell(f"hwal: error: {error}")
    return error.exit_code
