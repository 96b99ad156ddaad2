"""What a run leaves, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hwal.env import Settings
from hwal_torch.suite.base import Suite, largest_difference
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import look


class OutputTests(Suite):
    """Metrics, precision and memory."""

    def test_metrics(self, tmp_path: Path) -> None:
        """metrics.jsonl holds one object a global step, with the mean loss of the global batch."""
        size = self.worlds(1, 2)[-1]
        losses, seen = self.curve(size, Trial(), tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 13))
        assert [line["loss"] for line in lines] == losses
        assert [line["samples"] for line in lines] == [len(ids) for ids in seen]
        assert [line["lr"] for line in lines] == pytest.approx([0.02 / (1 + 0.1 * n) for n in range(12)])
        assert all(line["seconds"] > 0 for line in lines)
        plan = json.loads((tmp_path / "plan.json").read_text())
        assert plan["strategy"]["value"] != "auto" and plan["strategy"]["why"]

    def test_precision(self, tmp_path: Path) -> None:
        """P6: autocast runs matrix products in the precision that the plan decided."""
        _, plan = self.resolved
        name = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(plan.precision.value, "torch.float32")
        assert self.results(1, look, folder=tmp_path, settings=Settings())[0]["dtype"] == name

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_low_precision_follows_fp32(self, tmp_path: Path, precision: str) -> None:
        """P6: the same job in a lower precision, with the loss scaler where it needs one, follows fp32's curve."""
        self.needs(Settings(precision=precision))
        losses, _ = self.curve(1, Trial(text=True), tmp_path / "fp32")
        for size in self.worlds(1, 2):
            other, _ = self.curve(size, Trial(text=True), tmp_path / str(size), Settings(precision=precision, micro_batch=3))
            assert largest_difference(other, losses) <= 0.03 and other[-1] < other[0]

    def test_memory(self, tmp_path: Path) -> None:
        """Memory is told in bytes with its source, and None where it is unknown."""
        used, peak, total, source = self.results(1, look, folder=tmp_path)[0]["memory"]
        assert source and all(figure is None or figure > 0 for figure in (used, peak, total))
        assert used is None or peak is None or used <= peak * 1.01
