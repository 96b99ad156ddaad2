"""How a run shows itself on stderr: a bar on a terminal, a line now and then elsewhere, or nothing (HWAL_PROGRESS)."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from hwal.env import PROGRESS
from hwal.errors import UsageError, nearest

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

EVERY = 10.0  # seconds between two lines where there is no terminal
REDRAW = 0.1  # seconds between two changes of the bar
HALF_LIFE = 5.0  # seconds after which a rate counts half in the rate shown
MODES = ("bar", "lines", "off")
BAR = 20  # columns of the bar itself
IMPORTANCE = ("step", "loss", "rate", "left", "elapsed", "bar")  # of what stands beside it; "left" is the ETA


class Display(ABC):
    """Called from the training thread and the reporter's; every method is safe from both."""

    @abstractmethod
    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        """A step is done; `rate` is `unit` per second in that step."""

    @abstractmethod
    def say(self, text: str) -> None:
        """One line that stays."""

    @abstractmethod
    def close(self, failed: bool) -> None: ...


def make_display(environ: Mapping[str, str] = os.environ, stream: TextIO | None = None) -> Display:
    """The display that HWAL_PROGRESS names; without it, a bar on a terminal and lines elsewhere. Raises UsageError."""
    stream = stream or sys.stderr
    mode = progress_mode(environ) or ("bar" if stream.isatty() else "lines")
    kinds: dict[str, type[BarDisplay | LineDisplay | SilentDisplay]] = {
        "bar": BarDisplay,
        "lines": LineDisplay,
        "off": SilentDisplay,
    }
    return kinds[mode](stream)


def progress_mode(environ: Mapping[str, str]) -> str | None:
    """What HWAL_PROGRESS asks for, None when it is not set. Raises UsageError."""
    mode = environ.get(PROGRESS) or None
    if mode is not None and mode not in MODES:
        near = nearest(mode, MODES)
        raise UsageError(
            f"{PROGRESS}={mode!r}: must be one of {', '.join(MODES)}",
            where="environment",
            hint=f"did you mean {near}?" if near else None,
        )
    return mode


class SilentDisplay(Display):
    """No progress; what is said is still printed."""

    def __init__(self, stream: TextIO) -> None:
        from threading import RLock  # the command line imports this module too, and draws nothing

        self._stream = stream
        self._lock = RLock()

    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        pass

    def say(self, text: str) -> None:
        with self._lock:
            print(printable(text, self._stream), file=self._stream, flush=True)

    def close(self, failed: bool) -> None:
        pass


class LineDisplay(SilentDisplay):
    """`step 120/300  loss 2.3100  9.8k tokens/s  ETA 0:41`: the first step, one every EVERY seconds, the last."""

    def __init__(self, stream: TextIO, clock: Any = monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._pace = Pace()
        self._due = float("-inf")
        self._last: tuple[int, int | None, Any, str] | None = None

    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        now = self._clock()
        with self._lock:
            self._pace.add(now, step, rate)
            self._last = step, total, loss, unit
            if now >= self._due:
                self._due = now + EVERY
                self._print()

    def close(self, failed: bool) -> None:
        with self._lock:
            if self._last is not None:
                self._print()

    def _print(self) -> None:
        assert self._last is not None
        (step, total, loss, unit), self._last = self._last, None
        parts = [f"step {_of(step, total)}", f"loss {shown_loss(loss)}", f"{human(self._pace.rate)} {unit}/s"]
        left = self._pace.left(step, total)
        if left:
            parts.append(f"ETA {clock(left)}")
        self.say("  ".join(parts))


class BarDisplay(Display):
    """A rich progress bar. rich is imported when the first step is done; before that there is nothing to draw."""

    def __init__(self, stream: TextIO) -> None:
        from threading import Lock

        self._stream = stream
        self._lock = Lock()
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._columns: dict[str, ProgressColumn] = {}
        self._due = 0.0
        self._last: tuple[int, int | None, Any, str] | None = None

    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        now = monotonic()
        with self._lock:
            self._pace.add(now, step, rate)
            self._last = step, total, loss, unit
            if now >= self._due:
                self._due = now + REDRAW
                self._draw()

    def say(self, text: str) -> None:
        with self._lock:
            if self._bar is None:
                print(printable(text, self._stream), file=self._stream, flush=True)
            else:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self, failed: bool) -> None:
        with self._lock:
            if self._last is not None:
                self._draw()
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None

    def _draw(self) -> None:
        assert self._last is not None
        step, total, loss, unit = self._last
        self._last = None
        left = self._pace.left(step, total)
        fields: dict[str, Any] = {
            "step": f"step {_of(step, total)}",
            "loss": f"loss {shown_loss(loss)}",
            "rate": f"{human(self._pace.rate)} {unit}/s",
            "left": "" if left is None else f"ETA {clock(left)}",
        }
        if self._bar is None:
            self._bar, self._columns = self._open()
        elapsed = 0.0 if self._task is None else self._bar.tasks[0].elapsed or 0.0
        widths = {name: len(text) for name, text in fields.items()}
        widths |= {"bar": BAR, "elapsed": len("0:00:00") if elapsed < 36_000 else len("999 days, 0:00:00")}
        shown = fitting(widths, self._bar.console.width)
        self._bar.columns = tuple(column for name, column in self._columns.items() if name in shown)
        if self._task is None:
            self._task = self._bar.add_task("", total=total, completed=step, **fields)
            self._bar.start()
        else:
            self._bar.update(self._task, completed=step, total=total, **fields)

    def _open(self) -> tuple[Progress, dict[str, ProgressColumn]]:
        """The bar, and all its columns from left to right."""
        from rich.console import Console  # 50 ms, and only a terminal needs it
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns: dict[str, ProgressColumn] = {
            "step": TextColumn("{task.fields[step]}"),
            "bar": BarColumn(bar_width=BAR),
            "loss": TextColumn("{task.fields[loss]}"),
            "rate": TextColumn("{task.fields[rate]}"),
            "elapsed": TimeElapsedColumn(),
            "left": TextColumn("{task.fields[left]}"),
        }
        bar = Progress(
            console=Console(file=self._stream),
            redirect_stdout=False,  # stdout is the script's
            redirect_stderr=False,
            transient=False,
        )
        return bar, columns


def fitting(widths: Mapping[str, int], columns: int) -> set[str]:
    """Which parts of a bar a terminal of so many columns has room for, one column between two: numbers are never cut, the least
    important part goes first. The step stays."""
    shown = {name for name in IMPORTANCE if widths[name]}
    for name in reversed(IMPORTANCE[1:]):
        if sum(widths[each] + 1 for each in shown) - 1 <= columns:
            break
        shown.discard(name)
    return shown


class Pace:
    """Smooths rates, weighing by time, and says how long what is left will take.

    Attributes:
        rate: units per second, as an exponential mean in which a rate HALF_LIFE seconds old counts half.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._begun: tuple[float, int] | None = None
        self._now: float | None = None

    def add(self, now: float, step: int, rate: float) -> None:
        """A step was done at `now` (seconds, any clock), at `rate` units a second."""
        if self._now is None:
            self._begun, self.rate = (now, step), rate
        else:
            # Steps arrive in bursts, those of one burst at the same time: each counts a tenth at least.
            keep = min(0.9, 0.5 ** (max(now - self._now, 0.0) / HALF_LIFE))
            self.rate = keep * self.rate + (1 - keep) * rate
        self._now = now

    def left(self, step: int, total: int | None) -> float | None:
        """Seconds until step `total`, at the mean pace so far; None when unknown, as in the first second."""
        if total is None or self._begun is None or self._now is None:
            return None
        seconds, steps = self._now - self._begun[0], step - self._begun[1]
        if step >= total:
            return 0.0
        return (total - step) * seconds / steps if steps > 0 and seconds >= 1.0 else None


def human(number: float) -> str:
    """Three digits and a letter: 9.87, 123, 12.3k, 1.23M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * limit:
            return _three(number / limit) + letter
    return _three(number)


def size(number: int | None) -> str:
    """Bytes as `7.6 GiB`."""
    if number is None:
        return "?"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if number >= 1024**power:
            return f"{number / 1024**power:.1f} {unit}"
    return f"{number} B"


def _three(number: float) -> str:
    size = abs(number)
    return f"{number:.0f}" if size >= 99.95 else f"{number:.1f}" if size >= 9.995 else f"{number:.2f}"


def clock(seconds: float) -> str:
    """`0:41`, `12:05`, `3:07:00`, `2d 3:07:00`."""
    whole = max(0, round(seconds))
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def tell(text: str) -> None:
    """Something to the person, on stderr. Where it cannot be written, closed or on a full disk, nothing fails for it."""
    with suppress(OSError, ValueError, AttributeError):
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)


def printable(text: str, stream: TextIO) -> str:
    """`text` in what the stream's encoding has: × becomes x where there is no ×."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.translate({ord("×"): "x", ord("≠"): "!=", ord("≤"): "<=", ord("…"): "...", ord("–"): "-", ord("·"): "|"})
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _of(step: int, total: int | None) -> str:
    return str(step) if total is None else f"{step}/{total}"


def shown_loss(loss: Any) -> str:
    """A loss in four decimals; text, such as "nan", as it is."""
    if isinstance(loss, int | float):
        return f"{loss:.4f}" if abs(loss) < 1e4 else f"{loss:.3e}"
    return "–" if loss is None else str(loss)
