"""Reporter: a run's metrics.jsonl and its progress display, both kept off the training thread.

The training thread only appends to a queue; a background thread reads device scalars, writes the file and draws. Each
line of metrics.jsonl is one global step:

    {"step": 12, "epoch": 0, "loss": 2.31, "lr": 0.0003, "samples": 32, "seconds": 0.041, "time": 1764424800.1, …}

`step` counts from 1; `loss` is the mean over the global batch; `samples` are its rows; `seconds` is the wall time since
the step before; `time` is Unix time; what the script gave to `rt.log` follows. A line is written once the next step is
done, so that values logged after a step stand in its line.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

from hwal.aside import write_file
from hwal.display import Display, human, make_display, progress_mode, shown_loss
from hwal.errors import ScriptError
from hwal.metrics_file import MetricsFile

FILE = "metrics.jsonl"
TICK = 0.25  # seconds between two visits of the background thread
OWN = frozenset(
    {"step", "epoch", "loss", "lr", "samples", "seconds", "count", "time"}
)  # fields that a script must not overwrite


class Line(NamedTuple):
    """One line of metrics.jsonl in the making; `logged` is what rt.log added to it."""

    step: int
    epoch: int
    loss: Any
    lr: Any
    samples: int
    seconds: float
    count: Any
    time: float
    logged: dict[str, Any]

    def line(self) -> str:
        """As JSON. The fixed part is formatted, at a third of the cost of json.dumps: this runs once a step, and holds the
        interpreter's lock while the training thread wants it."""
        count = "" if self.count is None else f'"count": {_json(self.count)}, '
        text = (
            f'{{"step": {self.step}, "epoch": {self.epoch}, "loss": {_json(self.loss)}, "lr": {_json(self.lr)}, '
            f'"samples": {self.samples}, "seconds": {self.seconds:.6f}, {count}"time": {self.time:.3f}'
        )
        return f"{text}, {json.dumps(self.logged)[1:]}" if self.logged else text + "}"


class Reporter:
    """Takes the records of the main rank; on the others (`run_dir` None) it takes nothing and costs nothing.

    Numbers that a device computes may be `pending`: what follows one waits with it until the runtime has read it.

    Attributes:
        latest: the last value that was given under each name; "loss" is that of the last step.
    """

    def __init__(self, run_dir: Path | None) -> None:
        if run_dir is not None:
            progress_mode(os.environ)  # a wrong one is told before training, not at the first step
        self.run_dir = run_dir
        self.total_steps: int | None = None
        self.unit = "samples"
        self.latest: dict[str, Any] = {}
        self._queue: deque[Any] = deque()  # what rt.log was given, as dicts, and between them eight values a step
        self._clock = time() - perf_counter()
        self._open: Line | None = None  # the last step's: rt.log may still add to it
        self._written: dict[str, Any] | None = None  # of a step that a run goes on from: what was logged in its line
        self._early: dict[str, Any] = {}  # what was logged before any step
        self._file = None if run_dir is None else MetricsFile(run_dir / FILE, self.say)
        self._display: Display | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()  # the background thread looks now
        self._ending = False
        self._asked, self._flushed = threading.Event(), threading.Event()
        self._last = perf_counter()
        self._begun = perf_counter()
        self._steps = 0
        self._units = 0.0
        self._first_loss: Any = None
        self._last_loss: Any = None

    # the training thread

    def begin(self) -> None:
        """The clock of the first step starts here."""
        self._last = perf_counter()

    def step(self, step: int, epoch: int, loss: Any, lr: Any, samples: int, count: Any) -> None:
        if self.run_dir is None:
            return
        now = perf_counter()
        # Flat, not as a tuple: numbers are no work for the garbage collector, which would cost more than the rest of this.
        self._queue.extend((step, epoch, loss, lr, samples, count, now - self._last, now))
        self._last = now
        self.latest["loss"] = loss
        if self._thread is None:
            self._start()

    def add(self, values: Mapping[str, Any]) -> None:
        """Raises ScriptError for a name that is the run's own, and for a value that is no number or text."""
        for name, value in values.items():
            if name in OWN:
                raise ScriptError(
                    f"rt.log({name}=…): every line of {FILE} has a {name!r} already",
                    hint=f"another name, say rt.log(my_{name}=…)",
                )
            if not (value is None or isinstance(value, str | int | float) or hasattr(type(value), "__float__")):
                raise ScriptError(
                    f"rt.log({name}=…) takes numbers and text, not {type(value).__name__}", hint="log each number under a name"
                )
        if self.run_dir is not None:
            self._queue.append(dict(values))
            self.latest.update(values)

    def say(self, text: str) -> None:
        if self._display is None:
            self._display = make_display()
        with suppress(OSError, ValueError):  # nobody reads it any more: a closed pipe does not stop training
            self._display.say(text)

    def resumed(self, step: int) -> None:
        """Drops the lines of metrics.jsonl beyond the step that training goes on from: they will be written again. What is
        logged before the next step, an evaluation that is done again say, still stands in that step's line.
        """
        if self._file is None or self.run_dir is None or not (path := self.run_dir / FILE).exists():
            return
        self._file.attempt(lambda: _cut(path, step))
        self._open = _line_of(path, step)
        self._written = dict(self._open.logged) if self._open is not None else None

    def flush(self) -> None:
        """Returns when the lines of all steps so far are in the file, that of the last one too: were a checkpoint whole before
        that, a kill would leave steps without lines. What is logged for that step later still comes into its line.
        """
        if self._thread is not None:
            self._flushed.clear()
            self._asked.set()
            self._wake.set()
            while self._thread is not None and self._thread.is_alive() and not self._flushed.wait(TICK):
                pass

    def close(self, failed: bool) -> None:
        """Writes what is left and takes the display down."""
        if self._thread is not None:
            self._ending = True
            self._wake.set()
            self._thread.join()
            self._thread = None
        self._drain(last=True)
        if self._file is not None:
            self._file.close()
        if self._display is not None:
            with suppress(OSError, ValueError):
                self._display.close(failed)

    def summary(self) -> str | None:
        """What came of the run, in one line, once it is closed; None when there was no step."""
        if self._steps == 0:
            return None
        seconds = perf_counter() - self._begun
        return (
            f"{self._steps} step{'s' * (self._steps > 1)} in {seconds:.1f} s, "
            f"loss {shown_loss(self._first_loss)} to {shown_loss(self._last_loss)}, "
            f"{human(self._units / seconds)} {self.unit}/s"
        )

    # the background thread

    def _start(self) -> None:
        if self._display is None:
            self._display = make_display()
        thread = threading.Thread(target=self._loop, name="hwal-reporter", daemon=True)
        thread.start()  # which fails where there is no memory for its stack: there is none to wait for then
        self._thread = thread

    def _loop(self) -> None:
        while not self._ending:
            self._wake.wait(TICK)
            self._wake.clear()
            self._drain()

    def _drain(self, last: bool = False) -> None:
        asked = self._asked.is_set()
        lines: list[str] = []
        seconds = units = 0.0
        take = self._queue.popleft
        while self._queue and not _waits(self._queue):
            item = take()
            if isinstance(item, dict):
                self._merge(item)
                continue
            epoch, loss, lr, samples, count, took, at = take(), take(), take(), take(), take(), take(), take()
            if self._open is not None:
                lines += self._closed(self._open)
            loss, count = _number(loss), _number(count)
            self._open = Line(item, epoch, loss, _number(lr), samples, took, count, self._clock + at, self._early)
            self._early = {}
            if self._steps == 0:
                self._first_loss = loss
            self._last_loss = loss
            self._steps += 1
            done = samples if self.unit == "samples" else count
            units += done if isinstance(done, int | float) else 0.0
            seconds += took
        if last and self._open is not None:
            lines += self._closed(self._open)
        if seconds and self._open is not None:
            self._units += units
            if self._display is not None:
                with suppress(OSError, ValueError):
                    self._display.update(self._open.step, self.total_steps, self._last_loss, units / seconds, self.unit)
        if last:
            self._open = None
        if asked and self._open is not None:
            lines += self._closed(self._open)
            self._written = dict(self._open.logged)
        if self._file is not None:
            self._file.add(lines)
        if asked:
            self._asked.clear()
            self._flushed.set()

    def _closed(self, line: Line) -> list[str]:
        """The line, to be written. One that is in the file already stays there, or gives way if it has changed since."""
        before, self._written = self._written, None
        if before == line.logged:
            return []
        if before is not None and self._file is not None:
            self._file.take_back(line._replace(logged=before).line())
        return [line.line()]

    def _merge(self, values: dict[str, Any]) -> None:
        target = self._early if self._open is None else self._open.logged
        for name, value in values.items():
            try:
                target[name] = _number(value)
            except Exception as error:  # a tensor of many elements, say, which only its own library can tell
                self.say(f"rt.log({name}=…) is left out: {error}")


def _waits(queue: Sequence[Any]) -> bool:
    """Whether the first record, a step's or what was logged, holds a number that is not read yet."""
    values = queue[0].values() if isinstance(queue[0], dict) else (queue[2], queue[5])
    return any(getattr(value, "pending", False) is True for value in values)


def _number(value: Any) -> Any:
    """A JSON value: device scalars are read; NaN and infinities, which JSON lacks, become strings."""
    if value is None or isinstance(value, str | bool | int):
        return value
    number = value if type(value) is float else float(value)
    return number if math.isfinite(number) else str(number)


def _json(value: Any) -> str:
    """JSON of what _number gives; repr of a finite float is."""
    return repr(value) if type(value) is float or type(value) is int else json.dumps(value)


def _cut(path: Path, step: int) -> None:
    """Leaves the lines up to `step`, in one instant: a kill leaves the old file or the new one. They come first, so that the
    file is cut short, which a full disk allows; were they not, it would be written anew."""
    text = path.read_text(encoding="utf-8")
    kept = "".join(line + "\n" for line in text.splitlines() if _step_of(line) <= step)
    if text.startswith(kept):
        os.truncate(path, len(kept.encode()))
    else:
        write_file(path, kept)


def _line_of(path: Path, step: int) -> Line | None:
    """The line of that step, if it is whole and the last."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        if fields["step"] != step:
            return None
        own = [fields.pop(name, None) for name in Line._fields[:-1]]
        return Line._make([*own, fields])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 1 << 62  # a line cut short by a kill
