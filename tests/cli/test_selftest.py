"""`hwal selftest`, on a suite of four tests in place of the real one."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hwal.cli.selftest import Report
from tests.cli.paper import Result

Hwal = Callable[..., Result]

SUITE = '''
import os
import pytest

class RuntimeSuite:
    def test_where(self):
        """It runs on the device that was asked for."""
        assert os.environ["HWAL_DEVICE"] == "null:2"

    @pytest.mark.parametrize("world", [1, 2])
    def test_same_curve(self, world):
        assert world == 1, "curves differ | here"

    def test_bf16(self):
        """bf16 trains."""
        pytest.skip("no bf16 on imaginary devices")

class TestNotPartOfIt:
    def test_never_runs(self):
        raise AssertionError
'''


@pytest.fixture
def suite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "toy_suite.py").write_text(SUITE)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-flag\n")  # the user's own, which must not matter
    monkeypatch.setenv("PYTHONPATH", str(folder / "lib"), prepend=":")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-flag")
    monkeypatch.setattr("hwal.cli.selftest.SUITES", {"torch": "toy_suite"})


@pytest.mark.usefixtures("suite")
def test_the_report(hwal: Hwal, folder: Path) -> None:
    result = hwal("selftest", "--device", "null:2", "--out", "report")
    assert result.code == 1
    assert sorted(path.name for path in (folder / "report").iterdir()) == ["host.json", "report.json", "report.md"]
    report = Report.from_json((folder / "report" / "report.json").read_text(encoding="utf-8"))
    assert report.summary() == "null:2: 2 promises kept, 1 broken, 1 not applicable"
    assert [(promise.promise, promise.outcome) for promise in report.promises] == [
        ("It runs on the device that was asked for.", "pass"),
        ("same curve [1]", "pass"),
        ("same curve [2]", "fail"),
        ("bf16 trains.", "not applicable"),
    ]
    assert report.promises[3].reason == "no bf16 on imaginary devices"
    assert "curves differ | here\nE   assert 2 == 1" in (report.promises[2].reason or "")
    assert report.machine.host.name is None
    assert report.versions["torch"] is not None
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "| bf16 trains. | not applicable | no bf16 on imaginary devices |" in text
    assert "chosen: null: 2 × imaginary device, asked for by --device null:2" in text
    assert "null: 2 imaginary devices" in text and "## What broke\n\n### test_same_curve[2]" in text
    assert json.loads((folder / "report" / "host.json").read_text(encoding="utf-8"))["system"]


@pytest.mark.usefixtures("suite")
def test_a_suite_that_is_not_there(hwal: Hwal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwal.cli.selftest.SUITES", {"torch": "no_such_suite"})
    result = hwal("selftest", "--device", "null:2")
    assert result.code == 1
    assert "hwal: error: the suite could not run: pytest ended with exit code 4\n" in result.err


@pytest.mark.usefixtures("suite")
def test_a_suite_that_cannot_be_read_is_a_broken_promise(hwal: Hwal, folder: Path) -> None:
    (folder / "lib" / "toy_suite.py").write_text("import no_such_module")
    result = hwal("selftest", "--device", "null:2")
    assert result.code == 1
    assert "hwal: error: the suite could not run: pytest ended with exit code 2\n" in result.err
    assert "no_such_module" in result.err, "what pytest printed stands above"


def test_what_is_missing(hwal: Hwal, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.8.0"}
    monkeypatch.setattr("hwal.host.Host.version", lambda self, name: there.get(name))
    assert hwal("selftest", "--device", "null:1") == Result(
        2, "", "hwal: error: pytest is not installed\n  why:   it runs the suite\n  try:   pip install 'hwal[selftest]'\n"
    )
    there.clear()
    assert hwal("selftest", "--device", "null:1") == Result(
        2, "", "hwal: error: torch is not installed\n  why:   --framework torch\n  try:   pip install 'hwal[torch]'\n"
    )


def test_no_such_device(hwal: Hwal) -> None:
    result = hwal("selftest", "--device", "abacus")
    assert (result.code, result.err.splitlines()[0]) == (
        2,
        "hwal: error: unknown device 'abacus'; there are auto, cuda, rocm, cpu, tpu, null",
    )


def test_a_folder_that_cannot_be_made(hwal: Hwal, folder: Path) -> None:
    (folder / "taken").write_text("")
    result = hwal("selftest", "--device", "null:1", "--out", "taken")
    assert (result.code, result.err) == (
        2,
        "hwal: error: taken cannot be made: File exists\n  where: --out\n  try:   choose another --out\n",
    )


STOPPED = '''
import os, signal, subprocess, sys

class RuntimeSuite:
    def test_first(self):
        """The first is kept."""

    def test_second(self):
        """The second is stopped."""
        held = os.open("held", os.O_WRONLY)
        if DEAF:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[held])
        os.kill(os.getppid(), signal.NAME)
        rank.wait()

    def test_third(self):
        """The third is never begun."""
'''


@pytest.mark.skipif(sys.platform == "win32", reason="signals to process groups")
@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(("name", "deaf"), [("SIGTERM", False), ("SIGINT", True)])
def test_a_stop_leaves_a_report_of_what_was_tested(
    hwal: Hwal, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, deaf: bool
) -> None:
    """And ends what the test has started, also where the test does not end by itself."""
    (folder / "lib" / "toy_suite.py").write_text(STOPPED.replace("NAME", name).replace("DEAF", str(deaf)))
    os.mkfifo(folder / "held")
    held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    if deaf:
        monkeypatch.setattr("hwal.cli.selftest.GRACE", 0.1)
    result = hwal("selftest", "--device", "null:2", "--out", "report")
    said = f"null:2: 1 promises kept, 0 broken, 0 not applicable; stopped by {name}: 2 not tested"
    assert (result.code, result.out) == (1, f"{said}\nreport: report/report.md\n")
    assert f"hwal: {name}: ends the test that is running, and reports\n" in result.err
    assert select.select([held], [], [], 60)[0] and os.read(held, 1) == b"", "what the test has started still runs"
    os.close(held)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    report = Report.from_json((folder / "report" / "report.json").read_text(encoding="utf-8"))
    assert (report.stopped, report.summary()) == (name, said)
    assert [(promise.outcome, promise.reason) for promise in report.promises] == [
        ("pass", None),
        ("not tested", "it was running"),
        ("not tested", None),
    ]
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "| The second is stopped. | not tested | it was running | 0.0 |" in text and f"{said}.\n" in text
    assert sorted(path.name for path in (folder / "report").iterdir()) == ["host.json", "report.json", "report.md"]
