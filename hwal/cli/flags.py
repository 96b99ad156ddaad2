"""The flags of `hwal train`, and where on its command line the script begins. A test freezes their set.

The line is read here and not by argparse, which would hand the script's flags to hwal or read hwal's as the script's, and
which a run that needs no help need not even import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwal.cli import unknown_argument
from hwal.env import SETTINGS, Setting, above_zero, one_of, positive, switch
from hwal.errors import UsageError

PROG = "hwal train"
SHORT: Mapping[str, str] = {"-n": "--processes", "-h": "--help"}
BARE = "\0"  # --resume with nothing after it
OPTIMIZERS = ("adamw", "adafactor", "adamw8bit", "sgd")

WHERE = (
    Setting("device", str, "D", "auto, or a backend and which of its devices: cpu, cpu:0 (default auto)"),
    Setting("processes", positive, "N", "how many processes (default: one a device)"),
    Setting("engine", str, "E", "auto, direct or torchrun: what starts the processes (default auto)"),
    Setting("engine_args", str, "'…'", "handed to the engine as they are"),
    Setting("framework", str, "F", "torch or keras (default: what SCRIPT imports)"),
    Setting("dry_run", switch, "", "print what would be started, as JSON, and stop"),
    Setting(
        "plan",
        str,
        "FILE",
        "devices, processes, precision and strategy as in this file: a plan.json, or what --dry-run printed",
    ),
)
RECIPE = (
    Setting("model", str, "M", "tiny, small, gpt2, or the folder of a transformers model or config (default tiny)"),
    Setting("data", str, "PATH", "text to learn: a file or a folder of them (default: English that comes with Python)"),
    Setting("steps", positive, "N", "optimizer steps"),
    Setting("seq_len", positive, "N", "tokens a sample"),
    Setting("lr", above_zero, "X", "peak learning rate"),
    Setting("optimizer", one_of(*OPTIMIZERS), "O", ", ".join(OPTIMIZERS)),
    Setting("save_every", positive, "N", "steps between checkpoints"),
    Setting("eval_every", positive, "N", "steps between evaluations"),
)
SETTING_GROUPS: Mapping[str, tuple[str, ...]] = {
    "the curve": ("global_batch", "virtual_ranks", "deterministic", "seed", "on_nan"),
    "how it is computed": ("precision", "strategy", "micro_batch", "grad_checkpoint", "compile", "no_fallback"),
    "files and time": ("out", "resume", "keep", "hang_timeout", "start_timeout"),
}
"""Title in --help -> fields of Settings."""

EPILOG = """\
Flags go before SCRIPT; what follows SCRIPT is the script's. Each flag under "the curve", "how it is
computed" and "files and time" is also a variable, HWAL_PRECISION and so on; a flag wins over its variable.

exit codes: 0 done; 1 the script failed; 2 a wrong flag, or no such device;
            75 stopped by a signal with a checkpoint on disk: go on with --resume

examples:
  hwal train                                    the built-in language model, on the best device here
  hwal train --data notes.txt --steps 500       the same, on your text
  hwal train --device cpu -n 2 script.py --lr 3e-4
  hwal train --resume script.py                 go on with the newest run of script.py in runs/
  hwal train --dry-run script.py > plan.json    what would be done; --plan plan.json does it
"""


@dataclass(frozen=True, eq=False, repr=False)  # each of these costs a start-up 0.1 ms
class Given:
    """The command line, read.

    `flags` maps the name of each flag given (`seq_len`) to its value, the recipe's own to its text; `arguments` are the
    script's. `help` is set when --help was among the flags.
    """

    flags: Mapping[str, Any]
    script: str | None
    arguments: tuple[str, ...]
    help: bool = False


def groups() -> dict[str, tuple[Setting, ...]]:
    """Every flag but --help, under its title."""
    rows = {row.field: row for row in SETTINGS}
    settings = {title: tuple(rows[field] for field in fields) for title, fields in SETTING_GROUPS.items()}
    return {"where it runs": WHERE, **settings, "the built-in recipe (without SCRIPT)": RECIPE}


def read(argv: Sequence[str]) -> Given:
    """Splits a command line at SCRIPT and reads the flags before it.

    Raises UsageError for an unknown flag, naming the nearest, and for a value that is missing or wrong.
    """
    rows = {row.flag: row for group in groups().values() for row in group}
    flags: dict[str, Any] = {}
    at = 0
    while at < len(argv):
        token = argv[at]
        if token == "--" or not token.startswith("-") or token == "-":
            at += token == "--"
            break
        at += 1
        name, joined, value = token.partition("=")
        if token.startswith("-n") and name not in SHORT:  # -n4
            name, joined, value = "-n", "=", token[2:]
        shown, name = name, SHORT.get(name, name)
        if name == "--help":
            return Given(flags, None, (), help=True)
        row = rows.get(name)
        if row is None:
            raise unknown_argument(PROG, token, rows)
        if not row.metavar:
            if joined:
                raise UsageError(f"{shown} takes no value", where=f"{PROG} … {token}", hint=shown)
            flags[row.field] = True
            continue
        if not joined:
            following = argv[at] if at < len(argv) else "--"
            is_value = following != "--" and SHORT.get(following, following).partition("=")[0] not in rows
            if row.field == "resume" and (not is_value or following.startswith("-") or _is_script(following)):
                flags[row.field] = BARE
                continue
            if not is_value:
                hint = f"{shown} {row.metavar}: {row.help}"
                raise UsageError(f"{shown} needs a value", where=f"{PROG} … {shown}", hint=hint)
            value = following
            at += 1
        if not value and row.field != "engine_args":  # a variable of the shell's that is empty, say
            hint = f"{shown} {row.metavar}: {row.help}"
            raise UsageError(f"{shown} needs a value", where=f"{PROG} … {shown} ''", hint=hint)
        flags[row.field] = _value(row, shown, value)
    rest = argv[at:]
    return Given(flags, rest[0] if rest else None, tuple(rest[1:]))


def recipe_arguments(given: Given) -> tuple[str, ...]:
    """The recipe's own flags as its argv. Raises UsageError when there are any beside a script."""
    own = [(row.flag, given.flags[row.field]) for row in RECIPE if row.field in given.flags]
    if own and given.script is not None:
        flag, value = own[0]
        raise UsageError(
            f"{flag} is the built-in recipe's, and there is a script",
            where=f"{PROG} {flag} {value} … {given.script}",
            hint=f"if it is the script's, it goes behind: {PROG} {given.script} {flag} {value}",
        )
    return tuple(part for pair in own for part in pair)


def help_text() -> str:
    """What --help prints."""
    from hwal.cli.parser import Parser
    from hwal.plan.later import is_later

    parser = Parser(
        "train",
        "Trains SCRIPT, or without one the built-in language model, on the device(s) here.",
        "[flags] [SCRIPT [the script's own arguments]]",
        EPILOG,
    )
    for title, rows in groups().items():
        group = parser.add_argument_group(title)
        for row in rows:
            names = [*(short for short, long in SHORT.items() if long == row.flag), row.flag]
            text = row.help + (" (in a later version)" if is_later(row.field) else "")
            if row.metavar:
                group.add_argument(*names, metavar=row.metavar, nargs="?" if row.field == "resume" else None, help=text)
            else:
                group.add_argument(*names, action="store_true", help=text)
    return parser.format_help()


def spellings() -> Iterator[str]:
    """Every way to write a flag, as --help lists them."""
    yield from ("-h", "--help")
    for rows in groups().values():
        for row in rows:
            yield from (short for short, long in SHORT.items() if long == row.flag)
            yield row.flag


def _value(row: Setting, shown: str, text: str) -> Any:
    try:
        value = row.parse(text)
    except ValueError as error:
        raise UsageError(f"{shown} {text!r}: {error}", where=PROG, hint=f"{PROG} --help") from None
    return text if row in RECIPE else value


def _is_script(text: str) -> bool:
    """Whether the word after a bare --resume is the script and not a run's folder."""
    return text.endswith(".py") and not Path(text).is_dir()
