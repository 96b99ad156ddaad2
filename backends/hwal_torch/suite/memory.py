"""P10, out of memory: real runs of a script that wants more than there is, and their parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hwal_torch.suite import hungry
from hwal_torch.suite.base import SAME, Suite, largest_difference, losses_of


def finish(command: list[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Exit code of a program that runs in a folder, and what it printed."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environ, "HWAL_PROGRESS": "off", "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


class MemoryTests(Suite):
    """The search for a micro-batch, and what is said of memory that ran short."""

    def train(
        self, folder: Path, size: int, *arguments: float, out: str = "run", micro_batch: str = "auto", strategy: str = "auto"
    ) -> tuple[int, str]:
        """Exit code of `hwal train hungry.py …`, and what it printed."""
        if self.resolved[0].caps.spmd:
            pytest.skip(f"{self.device} works behind the script and frees late: which size fits first, nobody can say")
        flags = ["--device", self.device, "-n", str(size), "--out", out, "--precision", "fp32", "--strategy", strategy]
        if micro_batch:
            flags += ["--micro-batch", micro_batch]
        return finish([sys.executable, "-m", "hwal", "train", *flags, str(hungry.__file__), *map(str, arguments)], folder, {})

    @pytest.mark.parametrize(
        ("size", "strategy", "tried", "found"),
        [
            (1, "auto", ["24 did not", "trying 12", "trying 6", "tries 8"], 8),
            (2, "ddp", ["trying 6"], 6),
            (2, "fsdp:full", ["trying 6"], 6),
        ],
    )
    def test_the_largest_that_fits(self, tmp_path: Path, size: int, strategy: str, tried: list[str], found: int) -> None:
        """P10: the search ends at the largest size that fits, the curve is that of a run that fits at once, the next run begins
        with that size, and where it does not fit any more lowers it."""
        (size,) = self.worlds(size)
        self.train(tmp_path, 1, 0, 24, out="whole", micro_batch="")
        whole = losses_of(tmp_path / "whole")
        if strategy.startswith("fsdp") and not self.resolved[0].caps.sharding:
            pytest.skip(f"{self.device} shards nothing")
        code, said = self.train(tmp_path, size, 1, 24, strategy=strategy)
        assert code == 0, said
        assert [words for words in tried if words in said] == tried, said
        plan = json.loads((tmp_path / "run" / "plan.json").read_text())
        assert plan["micro_batch"] == found and f"micro-batch {found}: " in plan["notes"][-1]
        assert len(whole) == 6 and largest_difference(losses_of(tmp_path / "run"), whole) <= SAME

        code, said = self.train(tmp_path, size, 1, 24, out="again", strategy=strategy)
        assert code == 0 and f"micro-batch {found}: as found before" in said and "did not fit" not in said, said
        if size == 1:
            code, said = self.train(tmp_path, 1, 2, 24, out="hungrier")
            assert code == 0 and f"micro-batch {found} did not fit" in said and "micro-batch 4: " in said, said
            (rows,) = json.loads((tmp_path / "cache" / "hwal" / "micro_batch.json").read_text()).values()
            assert rows == 4

    def test_a_batch_that_takes_more_than_those_before(self, tmp_path: Path) -> None:
        """P10: a size that has fitted and does not any more is lowered, and the run goes on from its last checkpoint."""
        self.train(tmp_path, 1, 0, 8, out="whole", micro_batch="")
        code, said = self.train(tmp_path, 1, 1, 8, 2)
        assert code == 0 and "micro-batch 8 did not fit" in said and "trying 4" in said, said
        steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert steps == [1, 2, 3, 4, 5, 6]
        assert largest_difference(losses_of(tmp_path / "run"), losses_of(tmp_path / "whole")) <= SAME

    def test_an_evaluation_that_takes_more(self, tmp_path: Path) -> None:
        """P10: memory that runs short in an evaluation is told as such, with the batch's shapes; a search goes on."""
        code, said = self.train(tmp_path, 1, 0, 8, 0, 2, micro_batch="")
        assert code == 1 and "a micro-batch of 8 rows (8×4 float32), in an evaluation after step 2" in said, said
        assert "--micro-batch 4 (8 rows a forward now), or auto" in said and "torch.no_grad()" in said, said
        assert "--grad-checkpoint" not in said and "Traceback" not in said, said
        self.train(tmp_path, 1, 0, 8, out="whole", micro_batch="")
        code, said = self.train(tmp_path, 1, 0, 8, 0, 2, out="search")
        assert code == 0 and "micro-batch 8 did not fit" in said and "trying 4" in said, said
        assert largest_difference(losses_of(tmp_path / "search"), losses_of(tmp_path / "whole")) <= SAME

    def test_a_launcher_of_another_kind(self, tmp_path: Path) -> None:
        """P10: a foreign torchrun starts its ranks again, and they go on with the size that is next."""
        (size,) = self.worlds(2)
        launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "2")
        code, said = finish(
            [*launcher, "--nproc-per-node", str(size), str(hungry.__file__), "1", "24"],
            tmp_path,
            {"HWAL_MICRO_BATCH": "auto", "HWAL_PRECISION": "fp32", "HWAL_OUT": "run", "HWAL_DEVICE": self.device},
        )
        assert code == 0, said
        assert "the next start of this run tries 6 rows a forward" in said and "micro-batch 6: the largest found" in said, said
        self.train(tmp_path, 1, 0, 24, out="whole", micro_batch="")
        assert largest_difference(losses_of(tmp_path / "run"), losses_of(tmp_path / "whole")) <= SAME

    def test_not_even_one_row(self, tmp_path: Path) -> None:
        """P10: where one row does not fit, the run ends and says what was asked for, what was in use, and what helps."""
        code, said = self.train(tmp_path, 1, 11, 2)
        assert code == 1 and "trying 1" in said, said
        words = said[said.index("trying 1") :]
        for part in (
            "out of memory: ",
            "hungry.py:",
            "a micro-batch of 1 rows",
            "parameters",
            "in use of",
            "--grad-checkpoint",
        ):
            assert part in words, said
        assert "Traceback" not in said

    def test_without_a_search(self, tmp_path: Path) -> None:
        """P10: running out of memory is explained, and half the size is named."""
        code, said = self.train(tmp_path, 1, 1, 24, micro_batch="")
        assert code == 1 and "--micro-batch 12 (24 rows a forward now)" in said and "Traceback" not in said, said
