"""The progress displays."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from time import perf_counter

import pytest

from hwal.display import (
    EVERY,
    BarDisplay,
    Display,
    LineDisplay,
    Pace,
    SilentDisplay,
    clock,
    fitting,
    human,
    make_display,
    printable,
)
from hwal.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("mode", "stream", "kind"),
    [
        ("", Terminal(), BarDisplay),
        ("", io.StringIO(), LineDisplay),
        ("bar", io.StringIO(), BarDisplay),
        ("lines", Terminal(), LineDisplay),
        ("off", Terminal(), SilentDisplay),
    ],
)
def test_which_display(mode: str, stream: io.StringIO, kind: type[Display]) -> None:
    assert type(make_display({"HWAL_PROGRESS": mode}, stream)) is kind


def test_a_wrong_mode() -> None:
    with pytest.raises(UsageError) as caught:
        make_display({"HWAL_PROGRESS": "line"}, io.StringIO())
    assert str(caught.value) == (
        "HWAL_PROGRESS='line': must be one of bar, lines, off\n  where: environment\n  try:   did you mean lines?"
    )


def test_lines_come_first_now_and_then_and_last() -> None:
    stream, hand = io.StringIO(), Hand()
    display = LineDisplay(stream, hand)
    for step in range(1, 121):
        display.update(step, 300, 2.31, 9800.0, "tokens")
        hand.now += 0.25
    display.close(failed=False)
    display.close(failed=False)
    assert stream.getvalue().splitlines() == [
        "step 1/300  loss 2.3100  9.80k tokens/s",
        f"step {1 + EVERY * 4:.0f}/300  loss 2.3100  9.80k tokens/s  ETA 1:05",
        f"step {1 + EVERY * 8:.0f}/300  loss 2.3100  9.80k tokens/s  ETA 0:55",
        "step 120/300  loss 2.3100  9.80k tokens/s  ETA 0:45",
    ]


def test_the_last_line_is_not_told_twice() -> None:
    stream = io.StringIO()
    display = LineDisplay(stream, Hand())
    display.update(1, 1, 0.5, 3.0, "samples")
    display.close(failed=True)
    assert stream.getvalue() == "step 1/1  loss 0.5000  3.00 samples/s\n"


@pytest.mark.parametrize(
    ("loss", "text"), [("nan", "nan"), ("inf", "inf"), (None, "–"), (3, "3.0000"), (123456.0, "1.235e+05"), (-0.25, "-0.2500")]
)
def test_losses(loss: object, text: str) -> None:
    stream = io.StringIO()
    LineDisplay(stream, Hand()).update(1, None, loss, 10.0, "samples")
    assert stream.getvalue() == f"step 1  loss {text}  10.0 samples/s\n"


def test_silence_still_says() -> None:
    stream = io.StringIO()
    display = SilentDisplay(stream)
    display.update(1, None, 1.0, 1.0, "samples")
    display.say("saved 2 × 3")
    display.close(failed=False)
    assert stream.getvalue() == "saved 2 × 3\n"


def test_the_bar_shows_it_all() -> None:
    stream = Terminal()
    display = BarDisplay(stream)
    display.say("before the bar")
    display.update(1, 30, 2.5, 12300.0, "tokens")
    display.say("saved [step 1] in runs/a")
    display.update(30, 30, "nan", 12300.0, "tokens")
    display.close(failed=False)
    text = stream.getvalue()
    assert text.startswith("before the bar\n")
    assert "saved [step 1] in runs/a" in text
    for part in ("step 1/30", "loss 2.5000", "12.3k tokens/s", "step 30/30", "loss nan", "ETA 0:00"):
        assert part in text
    display.say("after it")
    assert stream.getvalue().endswith("after it\n")


def test_a_bar_of_unknown_length_has_no_eta() -> None:
    stream = Terminal()
    display = BarDisplay(stream)
    for step in range(1, 9):
        display.update(step, None, 2.5, 12.0, "samples")
    display.close(failed=False)
    assert "step 8" in stream.getvalue() and "ETA" not in stream.getvalue()


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (100, "step 20/200 ━━╺━━━━━━━━━━━━━━━━━ loss 0.5000 45.9k samples/s 0:00:00"),
        (60, "step 20/200 loss 0.5000 45.9k samples/s 0:00:00"),
        (40, "step 20/200 loss 0.5000 45.9k samples/s"),
        (38, "step 20/200 loss 0.5000"),
        (20, "step 20/200"),
    ],
)
def test_a_narrow_terminal_loses_parts_and_no_digits(monkeypatch: pytest.MonkeyPatch, columns: int, shown: str) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    display = BarDisplay(stream)
    display.update(20, 200, 0.5, 45900.0, "samples")
    display.close(failed=False)
    assert re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").strip().split("\n")[-1] == shown


def test_the_eta_goes_before_the_rate() -> None:
    widths = {"step": 11, "loss": 11, "rate": 15, "left": 8, "elapsed": 7, "bar": 20}
    assert fitting(widths, 77) == set(widths) and fitting(widths, 76) == set(widths) - {"bar"}
    assert fitting(widths, 48) == {"step", "loss", "rate", "left"} and fitting(widths, 47) == {"step", "loss", "rate"}
    assert fitting(widths, 5) == {"step"} and fitting(widths | {"left": 0}, 100) == set(widths) - {"left"}


def test_rich_is_imported_for_a_bar_only() -> None:
    code = """
import io, sys
from hwal.display import BarDisplay, LineDisplay
LineDisplay(io.StringIO()).update(1, 2, 0.1, 1.0, "samples")
bar = BarDisplay(io.StringIO())
assert "rich" not in sys.modules
bar.update(1, 2, 0.1, 1.0, "samples")
assert "rich" in sys.modules
bar.close(False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_both_threads_may_call() -> None:
    display = BarDisplay(Terminal())
    failures: list[BaseException] = []

    def speak() -> None:
        try:
            for i in range(200):
                display.say(f"line {i}")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=speak)
    thread.start()
    for step in range(1, 400):
        display.update(step, 400, 1.0, 1.0, "samples")
    thread.join()
    display.close(failed=False)
    assert not failures


def test_an_update_is_cheap() -> None:
    display = LineDisplay(io.StringIO())
    display.update(1, None, 1.0, 1.0, "samples")
    best = min(_seconds_for(display, 2000) for _ in range(5))
    assert best / 2000 < 20e-6


def _seconds_for(display: Display, count: int) -> float:
    begun = perf_counter()
    for step in range(count):
        display.update(step, 9999, 1.0, 1.0, "samples")
    return perf_counter() - begun


def test_pace_smooths_and_forgets() -> None:
    pace = Pace()
    pace.add(0.0, 1, 1.0)  # the first step, which warms up
    for second in range(1, 60):
        pace.add(float(second), second + 1, 100.0 if second % 2 else 102.0)
    assert pace.rate == pytest.approx(101.0, abs=1.0)
    assert pace.left(60, 120) == pytest.approx(60.0)
    assert pace.left(60, None) is None
    assert pace.left(120, 120) == 0.0


def test_pace_of_a_burst_is_not_believed() -> None:
    """The reporter hands over a quarter second's steps at once: no time between them does not mean no time left."""
    pace = Pace()
    for step in range(1, 50):
        pace.add(10.0, step, 200.0)
    assert pace.left(49, 100) is None
    assert pace.rate == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0.00"),
        (1.234, "1.23"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999.4, "999"),
        (999.9, "1.00k"),
        (12345, "12.3k"),
        (999_999, "1.00M"),
        (2.5e9, "2.50G"),
        (5e12, "5000G"),
    ],
)
def test_human(number: float, text: str) -> None:
    assert human(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (41.4, "0:41"), (59.6, "1:00"), (725, "12:05"), (11220, "3:07:00"), (184020, "2d 3:07:00"), (-3, "0:00")],
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_printable_keeps_what_the_stream_can_show() -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert printable("2 × 3 ≠ 5 …", narrow) == "2 x 3 != 5 ..."
    assert printable("日", narrow) == "\\u65e5"
    assert printable("2 × 3", io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) == "2 × 3"
