"""A run in a folder of its own; no process of it is left after the test."""

from __future__ import annotations

import os
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
    if sys.platform == "linux" and made:
        try:
            wait_for(lambda: not made[0].left_over(), 6)  # no orphan, after every test
        finally:
            for pid in made[0].left_over():
                os.kill(int(pid), signal.SIGKILL)
