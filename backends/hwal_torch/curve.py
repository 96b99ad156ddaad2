"""The loss curve of a run: read from metrics.jsonl, drawn in the terminal and as a PNG."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from hwal.reporter import FILE

Points = Sequence[tuple[int, float]]

WIDEST = 80  # columns
HEIGHT = 10  # rows
LABEL = 8  # columns
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # a braille letter's dots: column, row -> bit
BRAILLE = 0x2800


@dataclass(frozen=True)
class Curve:
    """What metrics.jsonl tells of a run: (step, loss) for training and evaluation, and each step's units per second."""

    train: tuple[tuple[int, float], ...] = ()
    evals: tuple[tuple[int, float], ...] = ()
    rates: tuple[float, ...] = ()

    @property
    def rate(self) -> float | None:
        """The median step's units per second: steps that also evaluated or saved do not count for more than one."""
        return median(self.rates) if self.rates else None


def read_curve(run_dir: Path) -> Curve:
    """The curve of a run; empty where there is no metrics.jsonl. Lines cut short by a kill are passed over."""
    try:
        lines = (run_dir / FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return Curve()
    records = [record for record in map(_record, lines) if record is not None]
    return Curve(
        tuple((r["step"], float(r["loss"])) for r in records if _finite(r.get("loss"))),
        tuple((r["step"], float(value)) for r in records for value in [_held_out(r)] if _finite(value)),
        tuple(
            r["count"] / r["seconds"] for r in records if _finite(r.get("count")) and _finite(r.get("seconds")) and r["seconds"]
        ),
    )


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _held_out(record: dict[str, Any]) -> Any:
    """The loss on what is not trained on; Keras's fit calls it val_loss."""
    return record.get("eval_loss", record.get("val_loss"))


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def show_curve(curve: Curve, stream: TextIO) -> None:
    """Prints the curve on a stream, in letters that its encoding has."""
    columns = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    text = draw(curve, columns, dots=_can_print(stream, chr(BRAILLE + 0xFF) + "●┤└─"))
    if text:
        print(text, file=stream)


def _can_print(stream: TextIO, letters: str) -> bool:
    try:
        letters.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def draw(curve: Curve, columns: int = WIDEST, rows: int = HEIGHT, dots: bool = True) -> str:
    """The curve as text, at most `columns` wide: braille dots for training, ● for evaluations; * and o without `dots`.

    Empty for fewer than two points.
    """
    if len(curve.train) < 2:
        return ""
    across, down = (2, 4) if dots else (1, 1)
    first, last = curve.train[0][0], curve.train[-1][0]

    def at(step: int, cells: int) -> int:
        return round((step - first) / max(last - first, 1) * (cells - 1))

    def depth(value: float, cells: int) -> int:
        return round((high - value) / ((high - low) or 1) * (cells - 1))

    wide = max(columns - LABEL - 3, 10)
    means = _means((at(step, wide * across), value) for step, value in curve.train)
    evals = [(step, value) for step, value in curve.evals if first <= step <= last]
    values = [value for _, value in (*means, *evals)]
    low, high = min(values), max(values)
    labels = [f"{high - (high - low) * row / (rows - 1):#.3g}" for row in range(rows)]
    grid = [[0] * wide for _ in range(rows)]
    before: int | None = None
    for x, value in means:
        y = depth(value, rows * down)
        span = range(y, y + 1) if before is None else range(min(before + (y > before), y), max(before - (y < before), y) + 1)
        for dot in span:
            grid[dot // down][x // across] |= DOTS[x % across][dot % down] if dots else 1
        before = y
    picture = [[chr(BRAILLE + cell) if dots and cell else "*" if cell else " " for cell in line] for line in grid]
    for step, value in evals:
        picture[depth(value, rows)][at(step, wide)] = "●" if dots else "o"
    bar, corner, line = ("┤", "└", "─") if dots else ("|", "+", "-")
    lines = [f"{label:>{LABEL}} {bar}{''.join(cells)}".rstrip() for label, cells in zip(labels, picture, strict=True)]
    lines.append(f"{'':>{LABEL}} {corner}{line * wide}")
    legend = ("⣀ loss" if dots else "* loss") + (f"   {'●' if dots else 'o'} eval_loss" if evals else "")
    between = wide - len(f"{first}{last}")
    lines.append(f"{'':>{LABEL}}  {first}{legend if len(legend) < between else '':^{between}}{last}")
    return "\n".join(lines)


def _means(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """One point for each column: the mean of those that fall into it."""
    sums: dict[int, tuple[float, int]] = {}
    for x, value in points:
        total, count = sums.get(x, (0.0, 0))
        sums[x] = (total + value, count + 1)
    return [(x, total / count) for x, (total, count) in sorted(sums.items())]


def save_png(curve: Curve, path: Path, title: str) -> str | None:
    """Draws the curve into a PNG file; returns why not where that failed. No window system is touched."""
    if not curve.train:
        return "no step was done"
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed: pip install matplotlib"
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, xlabel="step", ylabel="loss")
    axes.plot(*zip(*curve.train, strict=True), linewidth=1, alpha=0.8, label="loss")
    if curve.evals:
        axes.plot(*zip(*curve.evals, strict=True), marker="o", markersize=4, label="eval_loss")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return None
