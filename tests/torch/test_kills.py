"""SIGKILL at random moments of saving loses nothing (P3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.kills import kill_again


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "size", "count"), [("single", 1, 15), ("fsdp:full", 2, 8)])
def test_a_kill_while_saving_loses_nothing(tmp_path: Path, strategy: str, size: int, count: int) -> None:
    kills = list(kill_again(tmp_path, count, strategy, size))
    assert len(kills) == count
    assert not [kill for kill in kills if kill.lost]
    assert any(kill.within for kill in kills), "none came while a checkpoint was in the making"
