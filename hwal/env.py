"""Every HWAL_* variable, declared once.

Two kinds. *Settings* are what a user chooses for a run: each is a field of Settings, a flag of `hwal train`, and a
variable, so that a script started by plain python or a foreign torchrun can be told the same things. *Wiring* is what
the launcher tells its ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from hwal.errors import HwalError, UsageError, nearest
from hwal.record import Record, dataclass

PREFIX = "HWAL_"

DEVICE = "HWAL_DEVICE"
TOPOLOGY = "HWAL_TOPOLOGY"
NULL_DEVICES = "HWAL_NULL_DEVICES"
TPU_METADATA = "HWAL_TPU_METADATA"
XLA_CACHE = "HWAL_XLA_CACHE"
PLAN = "HWAL_PLAN"
WORLD = "HWAL_WORLD"
PROCESSES = "HWAL_PROCESSES"
STATE_DIR = "HWAL_STATE_DIR"
RUN_DIR = "HWAL_RUN_DIR"
RESUME = "HWAL_RESUME"
ROUND = "HWAL_ROUND"
ATTEMPT = "HWAL_ATTEMPT"
PROGRESS = "HWAL_PROGRESS"

WIRING: Mapping[str, str] = {
    DEVICE: "what --device names, for a script started without hwal train (default auto)",
    TOPOLOGY: "a file that `hwal devices --json` wrote, or a recorded host's folder, read in place of asking this machine",
    NULL_DEVICES: "how many imaginary devices the null backend reports (default none)",
    TPU_METADATA: "1: a TPU VM's metadata server may be asked which slice it is part of (default 0: variables only)",
    XLA_CACHE: "off, or the folder of the graphs that XLA has compiled for a TPU (default: xla in ~/.cache/hwal)",
    PROGRESS: "bar, lines or off: how a run shows its progress (default: bar on a terminal, lines elsewhere)",
    PLAN: "set by the launcher: the Plan, as JSON or as the path of a JSON file",
    WORLD: "set by the launcher: the World, as JSON, of machines that start the same command and have no launcher between them",
    PROCESSES: "set by the launcher: how many processes were asked for; a world of another size is refused",
    STATE_DIR: "set by the launcher: the folder where ranks leave word for it",
    RUN_DIR: "set by the launcher: the run's folder, already made",
    ATTEMPT: "set by the launcher: how often it has started this run before, with larger micro-batches",
    ROUND: "set by the launcher: how often the machines have gathered before, this run's first time being 0",
}


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def positive(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise ValueError("must be 1 or more")
    return value


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def above_zero(text: str) -> float:
    value = number(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be more than 0, and finite")
    return value


def patience(text: str) -> float | str:
    try:
        return "off" if text == "off" else above_zero(text)
    except ValueError as error:
        raise ValueError(f"{error} of seconds, or off" if "number" in str(error) else f"{error}; or off") from None


def micro_batch(text: str) -> int | str:
    return "auto" if text == "auto" else positive(text)


def one_of(*names: str) -> Callable[[str], str]:
    """A parser that takes these names only, and names the nearest when it refuses."""

    def parse(text: str) -> str:
        if text not in names:
            near = nearest(text, names)
            raise ValueError(f"must be one of {', '.join(names)}" + (f"; did you mean {near!r}?" if near else ""))
        return text

    return parse


def switch(text: str) -> bool:
    return one_of("0", "1")(text) == "1"


PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16")
STRATEGIES = ("auto", "single", "ddp", "fsdp:full", "fsdp:grad-op", "fsdp:hybrid", "fsdp:hybrid-grad-op")


@dataclass(frozen=True)
class Settings(Record):
    """What a user chooses for a run; None and False mean "hwal decides" and "off"."""

    seed: int = 42
    precision: str = "auto"
    strategy: str = "auto"
    global_batch: int | None = None
    micro_batch: int | str | None = None
    virtual_ranks: int | None = None
    grad_checkpoint: bool = False
    compile: bool = False
    deterministic: bool = False
    out: str | None = None
    resume: str | None = None
    keep: str | None = None
    hang_timeout: float | str | None = None
    start_timeout: float | None = None
    on_nan: str = "stop"
    no_fallback: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Reads the HWAL_* settings. Raises UsageError naming the variable and what is wrong with it."""
        given = {}
        for setting in SETTINGS:
            text = environ.get(setting.variable)
            if text not in (None, ""):
                try:
                    given[setting.field] = setting.parse(text)
                except ValueError as error:
                    hint = f"{setting.variable}={setting.metavar or '1'}: {setting.help}"
                    raise UsageError(f"{setting.variable}={text!r}: {error}", where="environment", hint=hint) from None
        return cls(**given)

    def to_environ(self) -> dict[str, str]:
        """The variables that make from_environ return this value: those that differ from the default."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        texts = {}
        for setting in SETTINGS:
            value = getattr(self, setting.field)
            if value != defaults[setting.field]:
                texts[setting.variable] = "1" if value is True else str(value)
        return texts


@dataclass(frozen=True)
class Setting:
    """One row: the field of Settings, how its text is read, the flag's metavar ("" for a switch) and help."""

    field: str
    parse: Callable[[str], Any]
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "precision",
        one_of(*PRECISIONS),
        "P",
        "auto, fp32, tf32, bf16 or fp16 (auto: what the device computes natively)",
    ),
    Setting("strategy", str, "S", "auto, single, ddp, fsdp:full, fsdp:grad-op, fsdp:hybrid …; or an FSDP config file"),
    Setting("global_batch", positive, "N", "samples per optimizer step over all ranks; overrides the script's loader"),
    Setting(
        "micro_batch",
        micro_batch,
        "N",
        "samples per forward on one rank, the rest is accumulated; auto: the most that fit",
    ),
    Setting(
        "virtual_ranks",
        positive,
        "N",
        "cut each global batch into N parts with random state of their own: same curve at any world",
    ),
    Setting("grad_checkpoint", switch, "", "recompute activations per block in the backward pass"),
    Setting("compile", switch, "", "torch.compile the model"),
    Setting("deterministic", switch, "", "bitwise equal losses at any world that divides --virtual-ranks"),
    Setting("out", str, "DIR", "the run's folder (default: runs/NAME, a new one for each run)"),
    Setting(
        "resume",
        str,
        "DIR",
        "go on from the newest good checkpoint in DIR (default: --out, else SCRIPT's newest run, where there is one)",
    ),
    Setting("keep", str, "RULE", "checkpoints to keep: last:N, best:METRIC, or all (default last:3)"),
    Setting("seed", whole, "N", "seed of initialisation, data order and dropout (default 42)"),
    Setting(
        "hang_timeout",
        patience,
        "S",
        "seconds without progress after which the run ends and the stuck rank is named; off (default: 20 steps, at least 60)",
    ),
    Setting("start_timeout", above_zero, "S", "seconds to wait for all ranks (default 25 on one machine, 600 across nodes)"),
    Setting("on_nan", one_of("stop", "skip"), "stop|skip", "what to do at a loss that is not finite (default stop)"),
    Setting("no_fallback", switch, "", "make an operator that falls back to the CPU an error"),
)


@contextmanager
def as_given(environ: Mapping[str, str], flags: Collection[str] = ()) -> Iterator[None]:
    """Errors about a setting name its flag. Where its variable gave it, and none of `flags` (fields) did, they name that."""
    try:
        yield
    except HwalError as error:
        for row in SETTINGS:
            text = environ.get(row.variable)
            if text and row.field not in flags and error.where in (row.flag, f"{row.flag} {text}"):
                error.where = f"{row.variable}={text}"
        raise


def has_flags(environ: Mapping[str, str] | None = None) -> bool:
    """Whether `hwal train` started the run, and its flags can be typed; None: this process's environment."""
    return bool((os.environ if environ is None else environ).get(PLAN))


def spelled(field: str, value: object = None, environ: Mapping[str, str] | None = None) -> str:
    """How a setting is given to a run that is started as the one at work was: as a flag, else as its variable."""
    row = next(row for row in SETTINGS if row.field == field)
    if has_flags(environ):
        return row.flag if value is None else f"{row.flag} {value}"
    return f"{row.variable}={1 if value is None else value}"


def variables() -> dict[str, str]:
    """Every variable hwal reads -> one line about it."""
    return {**{setting.variable: setting.help for setting in SETTINGS}, **WIRING}


def strangers(environ: Mapping[str, str]) -> list[str]:
    """One sentence for each HWAL_* variable that is set but means nothing, with the nearest that does."""
    known = variables()
    texts = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = nearest(name, [k.lower() for k in known])
            texts.append(f"{name} is set, but hwal has no such variable" + (f"; did you mean {near.upper()}?" if near else ""))
    return texts


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where hwal keeps what serves one run after another."""
    try:
        return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hwal"
    except RuntimeError:  # a container's user that has no home
        return Path("/nonexistent")
