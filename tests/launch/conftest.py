"""A run in a folder of its own; no process of it is left after the test."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .runs import Run, wait_for


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    made: list[Run] = []

    def one(script: str) -> Run:
        made.append(Run(tmp_path.resolve(), script))
        return made[-1]

    yield one
    for run in made:
        try:
            if sys.platform == "linux":
                wait_for(lambda run=run: not run.left_over(), 6)  # type: ignore[misc]  # no orphan, after every test
        finally:
            for pid in run.left_over() if sys.platform == "linux" else ():
                os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(run.tmp, ignore_errors=True)
