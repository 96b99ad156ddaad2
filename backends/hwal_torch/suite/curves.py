"""P2, the same curve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hwal.env import Settings
from hwal_torch.suite.base import SAME, Suite, largest_difference, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import alone, evaluate, look, train_by_hand, train_two


class CurveTests(Suite):
    """The losses of a run do not depend on how many processes it has."""

    @pytest.mark.parametrize("loader", ["map", "stream", "weighted", "batched", "whole"])
    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_same_curve(self, tmp_path: Path, text: bool, loader: str) -> None:
        """P2: the same samples and the same losses at every world, with accumulation, ragged ends and lengths that vary."""
        trial = Trial(text=text, loader=loader, optimizer="adamw" if text else "sgd")
        losses, samples = self.curve(1, trial, tmp_path / "one")
        assert len(losses) == 12 and {len(ids) for ids in samples} == {8, 2}
        cases = [(1, 3), *((size, micro) for size in (2, 3) if size <= self.largest_world for micro in (None, 2))]
        for size, micro in cases:
            settings = Settings(precision="fp32", micro_batch=micro)
            other, also = self.curve(size, trial, tmp_path / f"{size}-{micro}", settings)
            assert also == samples, f"world {size}, micro-batch {micro}: other samples"
            assert largest_difference(other, losses) <= SAME, f"world {size}, micro-batch {micro}"

    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_the_loop_by_hand(self, tmp_path: Path, text: bool) -> None:
        """P2: the losses are those of the plain loop over the same batches, clipping and schedule included."""
        trial = Trial(text=text, optimizer="sgd", clip=0.3)
        losses, seen = self.curve(1, trial, tmp_path)
        assert largest_difference(losses, train_by_hand(trial, Settings().seed, seen)) <= 1e-5

    def test_two_optimizers_and_an_idle_parameter(self, tmp_path: Path) -> None:
        """P2: several optimizers, parameters without gradient and a loop that was left early give the same curve everywhere."""
        trial = Trial(epochs=2)
        one = self.results(1, train_two, trial, folder=tmp_path / "one")[0]
        losses = losses_of(tmp_path / "one")
        assert len(losses) == one["steps"] == 8 and one["signature"] == "(x: 'torch.Tensor') -> 'torch.Tensor'"
        for size, micro in ((1, 3), *((size, None) for size in (2, 3) if size <= self.largest_world)):
            settings = Settings(precision="fp32", micro_batch=micro)
            for rank in self.results(size, train_two, trial, folder=tmp_path / f"{size}-{micro}", settings=settings):
                assert rank["signature"] == one["signature"]
            assert largest_difference(losses_of(tmp_path / f"{size}-{micro}"), losses) <= SAME

    @pytest.mark.parametrize("kind", ["never prepared", "unfrozen later", "called in parts"])
    def test_no_rank_trains_alone(self, tmp_path: Path, kind: str) -> None:
        """P2: a gradient that would stay one rank's own is an error on every rank."""
        (size,) = self.worlds(2)
        for outcome in self.run(size, alone, kind, folder=tmp_path):
            assert "ScriptError: a gradient of this step was not brought together" in (outcome.error or ""), outcome

    def test_an_evaluation_left_open(self, tmp_path: Path) -> None:
        """P2: an evaluation feed that was not read to its end leaves training as it is."""
        one = self.results(1, alone, "evaluation left open", folder=tmp_path / "one")[0]
        for size in self.worlds(2, 3):
            for weights in self.results(size, alone, "evaluation left open", folder=tmp_path / str(size)):
                assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in one.items())

    def test_fewer_rows_than_ranks(self, tmp_path: Path) -> None:
        """P2: a rank without rows keeps in step and changes nothing."""
        (size,) = self.worlds(3)
        trial = Trial(rows=10, batch=4, optimizer="sgd")
        losses, seen = self.curve(1, trial, tmp_path / "one")
        other, also = self.curve(size, trial, tmp_path / "three")
        assert min(map(len, seen)) < size and also == seen
        assert largest_difference(other, losses) <= SAME

    def test_virtual_ranks(self, tmp_path: Path) -> None:
        """P2: under --virtual-ranks the curve is the same at every world, with dropout too."""
        trial = Trial(text=True, dropout=0.3)
        settings = Settings(precision="fp32", virtual_ranks=6)
        losses, seen = self.curve(1, trial, tmp_path / "one", settings)
        assert losses != self.curve(1, trial, tmp_path / "plain")[0], "dropout did nothing"
        for size in (2, 3):
            if size <= self.largest_world:
                other, also = self.curve(size, trial, tmp_path / str(size), settings)
                assert also == seen and largest_difference(other, losses) <= SAME

    def test_loader_workers(self, tmp_path: Path) -> None:
        """P2: random augmentation in loader workers is a sample's own, whatever the world and the micro-batch."""
        trial = Trial(workers=2, noise=0.5, epochs=2, optimizer="sgd")
        losses, _ = self.curve(1, trial, tmp_path / "one")
        assert losses != self.curve(1, Trial(epochs=2, optimizer="sgd"), tmp_path / "plain")[0]
        for size in self.worlds(1, 2):
            other, _ = self.curve(size, trial, tmp_path / str(size), Settings(precision="fp32", micro_batch=2))
            assert largest_difference(other, losses) <= SAME

    def test_evaluation_within_training(self, tmp_path: Path) -> None:
        """P2: an evaluation feed reads every row once over all ranks, and leaves the training feed around it alone."""
        for size in self.worlds(1, 2, 3):
            ranks = self.results(size, evaluate, Trial(epochs=1), folder=tmp_path / str(size))
            for step in range(ranks[0]["steps"]):
                assert sorted(i for rank in ranks for i in rank["ids"][step]) == list(range(26))
            assert all(mean == 12.5 for rank in ranks for mean in rank["means"])
            assert ranks[0]["steps"] == 4

    def test_equal_weights_and_tied_ones(self, tmp_path: Path) -> None:
        """scope builds equal weights on every rank; tied ones stay tied; a deep copy of a prepared model is independent."""
        size = self.worlds(1, 2)[-1]
        ranks = self.results(size, look, folder=tmp_path)
        for rank in ranks:
            assert rank["tied"] and rank["copied"] == 0 and rank["own"] > 0
            assert all(torch.equal(rank["weights"][name], value) for name, value in ranks[0]["weights"].items())
