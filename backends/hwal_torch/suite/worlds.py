"""P1, world honesty."""

from __future__ import annotations

from pathlib import Path

from hwal.env import Settings
from hwal_torch.suite.base import Suite
from hwal_torch.suite.tasks import look


class WorldTests(Suite):
    """Every rank sees all others, or says who is missing."""

    def test_ranks_see_each_other(self, tmp_path: Path) -> None:
        """P1: after start-up every rank has seen all others."""
        for size in self.worlds(1, 2, 3):
            ranks = self.results(size, look, folder=tmp_path / str(size))
            assert [rank["rank"] for rank in ranks] == list(range(size))
            assert all(rank["world_size"] == size and rank["sum_of_ranks"] == sum(range(size)) for rank in ranks)

    def test_a_missing_rank_is_named(self, tmp_path: Path) -> None:
        """P1: a world that is not whole is an error that names who is missing."""
        (size,) = self.worlds(2)
        outcomes = self.run(size, look, folder=tmp_path, settings=Settings(start_timeout=2), absent=(1,))
        assert "WorldError" in (outcomes[0].error or "") and "rank 1 missing" in (outcomes[0].error or "")
