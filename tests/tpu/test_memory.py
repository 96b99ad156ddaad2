"""Memory that runs short under XLA, which says so late: real allocations, under a limit. Run in XLA's environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal_torch.suite import hungry
from hwal_torch.suite.base import largest_difference, losses_of
from hwal_torch.suite.memory import finish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def train(folder: Path, row: int, out: str, *flags: str) -> tuple[int, str]:
    """Exit code of `hwal train hungry.py`, whose rows take so many tenths of the limit, and what it printed."""
    command = [sys.executable, "-m", "hwal", "train", "--device", "tpu:cpu", "--precision", "fp32", "--out", out, *flags]
    return finish([*command, str(hungry.__file__), str(row), "24"], folder, {})


def test_the_search_finds_a_size_that_fits(tmp_path: Path) -> None:
    """Each size is waited for. How large it may be depends on when XLA frees what the forward before had."""
    code, said = train(tmp_path, 1, "run", "--micro-batch", "auto")
    assert code == 0 and "micro-batch 24 did not fit" in said and "micro-batch 12 did not fit" in said, said
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert 3 <= plan["micro_batch"] <= 9, said
    assert train(tmp_path, 0, "whole")[0] == 0
    assert largest_difference(losses_of(tmp_path / "run"), losses_of(tmp_path / "whole")) < 1e-5


def test_without_a_search_it_is_explained(tmp_path: Path) -> None:
    code, said = train(tmp_path, 1, "run")
    assert code == 1 and "Traceback" not in said, said
    assert "out of memory" in said and "--micro-batch 12 (24 rows a forward now), or auto" in said, said
