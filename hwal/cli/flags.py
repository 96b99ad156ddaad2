"""The flags of `hwal train`, and where on its command line the script begins. A test freezes their set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwal.cli.parser import Parser, typed, unknown_argument, verbatim
from hwal.env import SETTINGS, number, one_of, positive
from hwal.errors import UsageError

GROUPS: Mapping[str, tuple[str, ...]] = {
    "the curve": ("global_batch", "virtual_ranks", "deterministic", "seed", "on_nan"),
    "how it is computed": ("precision", "strategy", "micro_batch", "grad_checkpoint", "compile", "no_fallback"),
    "files and time": ("out", "resume", "keep", "hang_timeout", "start_timeout"),
}
"""Title in --help -> fields of Settings."""

OPTIMIZERS = ("adamw", "adafactor", "adamw8bit", "sgd")
BARE = "\0"  # --resume with nothing after it

EPILOG = """\
Flags go before SCRIPT; what follows SCRIPT is the script's. Each flag under "the curve", "how it is
computed" and "files and time" is also a variable, HWAL_PRECISION and so on; a flag wins over its variable.

exit codes: 0 done; 1 the script failed; 2 a wrong flag, or no such device;
            75 stopped by a signal with a checkpoint on disk: go on with --resume

examples:
  hwal train                                    the built-in language model, on the best device here
  hwal train --data notes.txt --steps 500       the same, on your text
  hwal train --device cpu -n 2 script.py --lr 3e-4
  hwal train --resume script.py                 go on with the newest run of script.py
  hwal train --dry-run script.py > plan.json    what would be done; --plan plan.json does it
"""


@dataclass(frozen=True, eq=False, repr=False)  # each of these costs a start-up 0.1 ms
class Given:
    """The command line, read: the flags before SCRIPT, SCRIPT, and what is the script's."""

    flags: argparse.Namespace
    script: str | None
    arguments: tuple[str, ...]


def read(argv: Sequence[str]) -> Given:
    """Raises UsageError, naming the nearest flag for an unknown one; parser.Exit when --help was printed."""
    parser, actions = _parser()
    own, rest = _split(parser.prog, argv, actions)
    flags = parser.parse_args(own)
    return Given(flags, rest[0] if rest else None, tuple(rest[1:]))


def flag_names() -> tuple[str, ...]:
    return tuple(_parser()[1])


def recipe_arguments(flags: argparse.Namespace, script: str | None) -> tuple[str, ...]:
    """The recipe's own flags as its argv. Raises UsageError when there are any beside a script."""
    given = [(f"--{name.replace('_', '-')}", getattr(flags, name)) for name in RECIPE if getattr(flags, name) is not None]
    if given and script is not None:
        flag, value = given[0]
        raise UsageError(
            f"{flag} is the built-in recipe's, and there is a script",
            where=f"hwal train {flag} {value} … {script}",
            hint=f"if it is the script's, it goes behind: hwal train {script} {flag} {value}",
        )
    return tuple(part for pair in given for part in pair)


RECIPE: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "model": ("M", str, "tiny, small, gpt2, or the folder of a transformers model or config (default tiny)"),
    "data": ("PATH", str, "text to learn: a file or a folder of them (default: English that comes with Python)"),
    "steps": ("N", positive, "optimizer steps"),
    "seq_len": ("N", positive, "tokens a sample"),
    "lr": ("X", number, "peak learning rate"),
    "optimizer": ("O", one_of(*OPTIMIZERS), ", ".join(OPTIMIZERS)),
    "save_every": ("N", positive, "steps between checkpoints"),
    "eval_every": ("N", positive, "steps between evaluations"),
}
"""Flag of the recipe -> metavar, how its text is checked, help."""


def _parser() -> tuple[Parser, dict[str, argparse.Action]]:
    """The parser, and its flags: each spelling -> what it does."""
    parser = Parser(
        "train",
        "Trains SCRIPT, or without one the built-in language model, on the device(s) here.",
        "[flags] [SCRIPT [the script's own arguments]]",
        EPILOG,
    )
    actions = list(parser._actions)
    where = parser.add_argument_group("where it runs")
    actions += [
        where.add_argument(
            "--device", metavar="D", help="auto, or a backend and which of its devices: cpu, cuda:0,2 (default auto)"
        ),
        where.add_argument("-n", "--processes", type=typed(positive), metavar="N", help="processes (default: one a device)"),
        where.add_argument("--engine", metavar="E", help="auto, direct or torchrun: what starts the processes (default auto)"),
        where.add_argument("--engine-args", metavar="'…'", help="handed to the engine as they are"),
        where.add_argument("--framework", metavar="F", help="torch or keras (default: what SCRIPT imports)"),
        where.add_argument("--dry-run", action="store_true", help="print what would be started, as JSON, and stop"),
        where.add_argument(
            "--plan", metavar="FILE", help="do what this file says: a run's plan.json, or the output of --dry-run"
        ),
    ]
    rows = {setting.field: setting for setting in SETTINGS}
    for title, fields in GROUPS.items():
        group = parser.add_argument_group(title)
        for field in fields:
            row = rows[field]
            if field == "resume":
                actions.append(group.add_argument(row.flag, nargs="?", const=BARE, metavar=row.metavar, help=row.help))
            elif row.metavar:
                actions.append(group.add_argument(row.flag, type=typed(row.parse), metavar=row.metavar, help=row.help))
            else:
                actions.append(group.add_argument(row.flag, action="store_const", const=True, help=row.help))
    recipe = parser.add_argument_group("the built-in recipe (without SCRIPT)")
    for name, (metavar, check, text) in RECIPE.items():
        flag = f"--{name.replace('_', '-')}"
        actions.append(recipe.add_argument(flag, type=verbatim(check), metavar=metavar, help=text))
    return parser, {spelling: action for action in actions for spelling in action.option_strings}


def _split(prog: str, argv: Sequence[str], actions: Mapping[str, argparse.Action]) -> tuple[list[str], list[str]]:
    """hwal's own flags, each joined to its value, and the rest, which begins with SCRIPT.

    argparse cannot do this: it would hand the script's flags to hwal, or read hwal's as the script's.
    """
    own: list[str] = []
    at = 0
    while at < len(argv):
        token = argv[at]
        if token == "--":
            return own, list(argv[at + 1 :])
        if not token.startswith("-") or token == "-":
            return own, list(argv[at:])
        name, joined, value = token.partition("=")
        if name not in actions and token.startswith("-n") and not token.startswith("--"):
            name, joined, value = "-n", "=", token[2:].removeprefix("=")
        action = actions.get(name)
        if action is None:
            raise unknown_argument(prog, token, actions)
        at += 1
        if action.nargs == 0:
            if joined:
                raise UsageError(f"{name} takes no value", where=f"{prog} … {token}", hint=name)
            own.append(name)
            continue
        if not joined:
            following = argv[at] if at < len(argv) else None
            usable = following is not None and following != "--" and following.partition("=")[0] not in actions
            if action.nargs == "?" and (not usable or following.startswith("-") or _is_script(following)):  # type: ignore[union-attr,arg-type]
                own.append(name)
                continue
            if not usable:
                raise UsageError(
                    f"{name} needs a value", where=f"{prog} … {name}", hint=f"{name} {action.metavar}: {action.help}"
                )
            value = str(following)
            at += 1
        own.append(f"{action.option_strings[-1]}={value}")
    return own, []


def _is_script(text: str) -> bool:
    """Whether the word after a bare --resume is the script and not a run's folder."""
    return text.endswith(".py") and not Path(text).is_dir()
