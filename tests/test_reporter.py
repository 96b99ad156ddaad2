"""metrics.jsonl: what is written, in which order, and what happens when it cannot be."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import pytest

from hwal.display import Display
from hwal.errors import ScriptError, UsageError
from hwal.reporter import FILE, Reporter


class Ear(Display):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.updates: list[tuple[Any, ...]] = []
        self.said: list[str] = []
        self.closed: list[bool] = []

    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        self.updates.append((step, total, loss, rate, unit))

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self, failed: bool) -> None:
        self.closed.append(failed)


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    ear = Ear()
    monkeypatch.setattr("hwal.reporter.make_display", lambda: ear)
    return ear


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text(encoding="utf-8").splitlines()]


def step(reporter: Reporter, number: int, loss: Any = 1.0, count: Any = None) -> None:
    reporter.step(number, 0, loss, 0.1, 8, count)


def test_a_line_a_step_in_order(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    reporter.total_steps = 500
    for number in range(1, 501):
        step(reporter, number, loss=1.0 / number)
    reporter.close(failed=False)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == list(range(1, 501))
    assert [line["loss"] for line in found] == [1.0 / number for number in range(1, 501)]
    assert list(found[0]) == ["step", "epoch", "loss", "lr", "samples", "seconds", "time"]
    assert all(line["seconds"] >= 0 for line in found)
    assert ear.updates[-1][:3] == (500, 500, 1.0 / 500)
    assert ear.closed == [False]
    assert re.fullmatch(r"500 steps in \d+\.\d s, loss 1\.0000 to 0\.0020, \S+ samples/s", reporter.summary() or "")


def test_the_background_thread_writes_while_training_goes_on(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    for number in (1, 2, 3):
        step(reporter, number)
    deadline = perf_counter() + 20
    while not ((tmp_path / FILE).exists() and len(lines(tmp_path)) > 1) and perf_counter() < deadline:
        sleep(0.02)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2], "the last step's line may still get values"
    reporter.close(failed=False)
    assert threading.active_count() == 1 or "hwal-reporter" not in [thread.name for thread in threading.enumerate()]


def test_what_is_logged_stands_in_the_last_steps_line(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    reporter.add({"baseline": 0.5})
    step(reporter, 1)
    reporter.add({"accuracy": 0.75})
    reporter.add({"note": "half way", "flag": True})
    step(reporter, 2)
    reporter.add({"accuracy": 1})
    reporter.close(failed=False)
    first, second = lines(tmp_path)
    assert {key: first[key] for key in ("baseline", "accuracy", "note", "flag")} == {
        "baseline": 0.5,
        "accuracy": 0.75,
        "note": "half way",
        "flag": True,
    }
    assert second["accuracy"] == 1 and "baseline" not in second


def test_what_is_not_finite_is_text(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    step(reporter, 1, loss=float("nan"), count=float("inf"))
    reporter.unit = "tokens"
    step(reporter, 2, loss=float("-inf"), count=float("nan"))
    reporter.close(failed=False)
    assert [(line["loss"], line["count"]) for line in lines(tmp_path)] == [("nan", "inf"), ("-inf", "nan")]
    assert ear.updates[-1][2] == "-inf"


class Scalar:
    """A device scalar, which knows what it is when asked."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_device_scalars_are_read_off_the_training_thread(tmp_path: Path, ear: Ear) -> None:
    readers: list[str] = []

    class Watched(Scalar):
        def __float__(self) -> float:
            readers.append(threading.current_thread().name)
            return self.value

    reporter = Reporter(tmp_path)
    step(reporter, 1, loss=Watched(2.5))
    deadline = perf_counter() + 5
    while not readers and perf_counter() < deadline:
        sleep(0.02)
    reporter.close(failed=False)
    assert readers == ["hwal-reporter"]
    assert lines(tmp_path)[0]["loss"] == 2.5


def test_the_rate_counts_the_unit(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    reporter.unit = "tokens"
    step(reporter, 1, count=Scalar(4096.0))
    reporter.close(failed=False)
    [line] = lines(tmp_path)
    assert line["count"] == 4096.0
    assert ear.updates[0][3] == pytest.approx(4096.0 / line["seconds"], rel=0.2)
    assert ear.updates[0][4] == "tokens"


def test_resuming_cuts_what_will_be_done_again(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    for number in range(1, 6):
        step(reporter, number)
    reporter.close(failed=True)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 6, "lo')  # a kill in the middle of a line
    again = Reporter(tmp_path)
    again.resumed(3)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]
    step(again, 4)
    again.close(failed=False)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_display_that_breaks_does_not_stop_the_metrics(tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    for name in ("say", "update", "close"):
        monkeypatch.setattr(ear, name, broken)
    reporter = Reporter(tmp_path)
    step(reporter, 1)
    reporter.say("to nobody")
    step(reporter, 2)
    reporter.close(failed=False)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_resuming_without_a_file_is_nothing(tmp_path: Path) -> None:
    Reporter(tmp_path).resumed(3)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, ear: Ear) -> None:
    (tmp_path / FILE).mkdir()
    reporter = Reporter(tmp_path)
    reporter.resumed(1)
    for number in range(1, 6):
        step(reporter, number)
    reporter.close(failed=False)
    assert ear.said == [
        "metrics.jsonl cannot be written (Is a directory); training goes on, and its lines wait",
        "metrics.jsonl lacks 5 lines (Is a directory)",
    ]
    assert [update[0] for update in ear.updates] == [5]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full on this system")
def test_a_full_disk_is_told_once(tmp_path: Path, ear: Ear) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    reporter = Reporter(tmp_path)
    for number in range(1, 2000):
        step(reporter, number)
    reporter.close(failed=False)
    assert ear.said == [
        "metrics.jsonl cannot be written (No space left on device); training goes on, and its lines wait",
        "metrics.jsonl lacks 1999 lines (No space left on device)",
    ]


def test_other_ranks_take_nothing(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(None)
    step(reporter, 1)
    reporter.add({"accuracy": 1.0})
    reporter.close(failed=False)
    assert (list(tmp_path.iterdir()), ear.updates) == ([], [])


def test_a_run_without_steps_leaves_no_file(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    reporter.add({"accuracy": 1.0})
    reporter.close(failed=False)
    reporter.close(failed=False)
    assert list(tmp_path.iterdir()) == []


def test_what_must_not_be_logged() -> None:
    reporter = Reporter(None)
    with pytest.raises(ScriptError) as caught:
        reporter.add({"step": 3})
    assert str(caught.value) == (
        "rt.log(step=…): every line of metrics.jsonl has a 'step' already\n  try:   another name, say rt.log(my_step=…)"
    )
    with pytest.raises(ScriptError) as caught:
        reporter.add({"history": [1, 2]})
    assert str(caught.value) == "rt.log(history=…) takes numbers and text, not list\n  try:   log each number under a name"


def test_a_value_that_turns_out_to_be_no_number_is_left_out(tmp_path: Path, ear: Ear) -> None:
    class Many:
        def __float__(self) -> float:
            raise RuntimeError("a tensor with 3 elements cannot be converted")

    reporter = Reporter(tmp_path)
    step(reporter, 1)
    reporter.add({"many": Many(), "one": 1.0})
    step(reporter, 2)
    reporter.close(failed=False)
    assert [(line.get("many"), line.get("one")) for line in lines(tmp_path)] == [(None, 1.0), (None, None)]
    assert ear.said == ["rt.log(many=…) is left out: a tensor with 3 elements cannot be converted"]


def test_a_wrong_display_is_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_PROGRESS", "bars")
    with pytest.raises(UsageError, match="HWAL_PROGRESS='bars'"):
        Reporter(tmp_path)


def test_a_step_costs_the_training_thread_little(tmp_path: Path, ear: Ear) -> None:
    """3 µs on a quiet machine; the best of several rounds, with room for a slow or busy one."""
    reporter = Reporter(tmp_path)
    step(reporter, 1)
    rounds = []
    for _ in range(20):
        begun = perf_counter()
        for number in range(200):
            reporter.step(number, 0, 1.0, 0.1, 8, None)
        rounds.append((perf_counter() - begun) / 200)
    reporter.close(failed=False)
    print(f"reporter.step: best {min(rounds) * 1e6:.2f} µs")
    assert min(rounds) < 6e-6


def test_what_is_logged_again_stands_in_the_line_that_a_run_goes_on_from(tmp_path: Path, ear: Ear) -> None:
    """An evaluation after the last step before a resume is done again; the line is neither doubled nor lost."""
    first = Reporter(tmp_path)
    for step in (1, 2, 3):
        first.step(step, 0, 1.0 / step, 0.1, 8, 64.0)
    first.close(failed=False)
    before = (tmp_path / FILE).read_text()
    silent = Reporter(tmp_path)
    silent.resumed(3)
    silent.close(failed=False)
    assert (tmp_path / FILE).read_text() == before
    again = Reporter(tmp_path)
    again.resumed(2)
    again.add({"accuracy": 0.5})
    again.step(3, 0, 0.25, 0.1, 8, None)
    again.close(failed=False)
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[1] == {**json.loads(before.splitlines()[1]), "accuracy": 0.5} and lines[2]["loss"] == 0.25


def test_flushed_lines_are_there_and_take_what_is_logged_later(tmp_path: Path, ear: Ear) -> None:
    reporter = Reporter(tmp_path)
    for number in (1, 2, 3):
        step(reporter, number)
        reporter.flush()
        assert [line["step"] for line in lines(tmp_path)] == list(range(1, number + 1))
    reporter.add({"accuracy": 0.5})
    step(reporter, 4)
    reporter.flush()
    reporter.flush()
    reporter.close(failed=False)
    reporter.flush()
    assert [(line["step"], line.get("accuracy")) for line in lines(tmp_path)] == [(1, None), (2, None), (3, 0.5), (4, None)]


def test_a_thread_that_cannot_be_started_is_not_waited_for(tmp_path: Path, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    reporter = Reporter(tmp_path)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        step(reporter, 1)
    reporter.close(failed=True)
    assert [line["step"] for line in lines(tmp_path)] == [1]
