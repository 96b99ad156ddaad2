"""Commands run in this process, on a machine from paper, in an empty folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hwal.cli import main
from tests.cli.paper import MACHINE, Result

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with an environment that says nothing to hwal but where its machine is."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    roots = [str(ROOT), str(ROOT / "backends"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, roots)))  # for programs that a test starts
    paper = tmp_path / "paper.json"
    paper.write_text(MACHINE.to_json(), encoding="utf-8")
    monkeypatch.setenv("HWAL_TOPOLOGY", str(paper))
    monkeypatch.setenv("COLUMNS", "80")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def hwal(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def call(*argv: str) -> Result:
        code = main(argv)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return call
