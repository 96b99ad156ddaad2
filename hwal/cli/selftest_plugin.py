"""A pytest plugin: writes what became of every test, as the JSON that `hwal selftest` reads. Loaded by `-p`, in pytest only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OUTCOMES = {"passed": "pass", "failed": "fail", "skipped": "not applicable"}


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--hwal-results", metavar="FILE")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Results(Path(config.getoption("--hwal-results"))))


class Results:
    """One row a test: its name, what its docstring's first line promises, its outcome and why."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._promises: dict[str, str] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            doc = (getattr(item.function, "__doc__", None) or "").strip()
            words = item.originalname.removeprefix("test_").replace("_", " ")
            which = f" [{item.callspec.id}]" if hasattr(item, "callspec") else ""
            self._promises[item.nodeid] = (doc.split("\n", 1)[0] or words) + which

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            self._keep(item.nodeid, "not tested", 0.0, None)
        self._write()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._keep(nodeid, "not tested", 0.0, "it was running")
        self._write()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return  # setting up and taking down count when they fail
        before = self._rows.get(report.nodeid, {"seconds": 0.0})
        if before.get("outcome") == "fail":
            return
        self._keep(report.nodeid, OUTCOMES[report.outcome], before["seconds"] + report.duration, _reason(report))
        self._write()

    def _keep(self, test: str, outcome: str, seconds: float, reason: str | None) -> None:
        self._rows[test] = {
            "name": test.rpartition("::")[2],
            "promise": self._promises.get(test, test),
            "outcome": outcome,
            "seconds": round(seconds, 3),
            "reason": reason,
        }

    def _write(self) -> None:
        """After each test, and as a whole: pytest may be killed at any moment."""
        new = self._path.with_suffix(".tmp")
        new.write_text(json.dumps(list(self._rows.values())), encoding="utf-8")
        new.replace(self._path)


def _reason(report: Any) -> str | None:
    if report.outcome == "passed":
        return None
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
