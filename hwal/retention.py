"""Which checkpoints stay: `--keep last:3,best:eval_loss`, or `all`.

last:N             the N newest
best:METRIC        besides, the one saved when rt.log(METRIC=…) had last given the best value
best:METRIC:min    lower is better; :max, higher is. Without either the name decides (`lower_is_better`).
all                every one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from hwal.errors import UsageError
from hwal.record import Record, dataclass

DEFAULT = "last:3"
LOWER = frozenset({
    "loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "mse", "mae", "rmse", "mape", "wer", "cer", "ter",
    "fid", "kl", "bpb", "bpc", "bits", "distance", "regret", "time", "seconds", "latency",
})  # fmt: skip


@dataclass(frozen=True)
class Best(Record):
    """Keep the checkpoint with the best value of a metric; `named` says whether the rule itself says which is better."""

    metric: str
    lowest: bool
    named: bool

    def __str__(self) -> str:
        return f"best:{self.metric}:{'min' if self.lowest else 'max'}"


@dataclass(frozen=True)
class Keep(Record):
    """A rule. `last`: how many of the newest stay, None for all."""

    last: int | None
    best: tuple[Best, ...] = ()


def read_keep(rule: str | None) -> Keep:
    """The rule that --keep gives. One that names only the best keeps the newest besides: a run goes on from it.

    Raises UsageError.
    """
    last: int | None = None
    best: list[Best] = []
    parts = (rule or DEFAULT).split(",")
    if parts == ["all"]:
        return Keep(None)
    for part in parts:
        kind, _, rest = part.partition(":")
        if kind == "last" and last is None and rest.isascii() and rest.isdecimal() and int(rest) > 0:
            last = int(rest)
        elif kind == "best" and (match := re.fullmatch(r"(?P<metric>[^:\s]+)(:(?P<which>min|max))?", rest)):
            lowest = match["which"] == "min" if match["which"] else lower_is_better(match["metric"])
            best.append(Best(match["metric"], lowest, match["which"] is not None))
        else:
            raise UsageError(
                f"--keep {rule} is not a rule",
                where="--keep",
                why=f"{part!r} is none of last:N, best:METRIC, best:METRIC:min, best:METRIC:max",
                hint="--keep last:3, --keep last:3,best:eval_loss, or --keep all",
            )
    return Keep(last or 1, tuple(best))


def lower_is_better(metric: str) -> bool:
    """Whether a name (`eval_loss`, `val/ppl`, `testError`) has one of the words of LOWER in it."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", metric)
    return any(word.lower() in LOWER for word in words)


def kept(keep: Keep, saved: Mapping[int, Mapping[str, float]], written: int, damaged: frozenset[int] = frozenset()) -> set[int]:
    """The steps whose checkpoints stay. `saved`: step -> metrics; `damaged`: steps that cannot be the best.

    The one just written stays, whatever its number: newer ones beside it can only be damaged, or the run would have gone on
    from them.
    """
    if keep.last is None:
        return set(saved)
    others = sorted(saved.keys() - {written}, reverse=True)
    stays = {written, *others[: keep.last - 1]}
    for best in keep.best:
        values = {step: metrics.get(best.metric) for step, metrics in saved.items() if step not in damaged}
        finite = {step: value for step, value in values.items() if value is not None and isfinite(value)}
        if finite:
            stays.add(min(finite, key=lambda step: (finite[step] if best.lowest else -finite[step], step)))
    return stays & saved.keys()


def metrics_for(keep: Keep, latest: Mapping[str, Any], tell: Callable[[str], None]) -> dict[str, float]:
    """The finite values of the rule's metrics, from the last of everything that was logged; tells what it makes of them."""
    found: dict[str, float] = {}
    for best in keep.best:
        if not best.named:
            better, other = ("lower", "max") if best.lowest else ("higher", "min")
            tell(f"--keep best:{best.metric}: {better} is better, by its name; best:{best.metric}:{other} says the opposite")
        try:
            number = float(latest[best.metric])
        except Exception:  # not there, text, or a tensor of many elements, which only its own library can tell
            tell(f"--keep best:{best.metric}: no number was logged under that name before this save, which cannot be the best")
            continue
        if isfinite(number):
            found[best.metric] = number
    return found
