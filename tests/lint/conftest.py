"""The command in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwal.cli import main
from tests.lint.command import Lint


@pytest.fixture
def lint(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """Runs `hwal lint` in an empty folder; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["lint", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
