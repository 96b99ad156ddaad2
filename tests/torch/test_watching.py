"""What a watchdog says and does to a torch rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hwal_torch.watching import Watched


@pytest.mark.parametrize("rank", [0, 1])
def test_what_it_says_is_said_on_every_rank(capsys: pytest.CaptureFixture[str], rank: int) -> None:
    """That one has made no progress, which is told once; rt.say is rank 0's alone."""
    said: list[str] = []
    rt: Any = SimpleNamespace(is_main=rank == 0, say=said.append)
    Watched(rt).tell("it goes on")
    assert (said, capsys.readouterr().err) == ((["it goes on"], "") if rank == 0 else ([], "it goes on\n"))
