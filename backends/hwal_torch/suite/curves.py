"""P2, the same curve."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from hwal.env import Settings
from hwal_torch.suite.base import FP32, SAME, Suite, largest_difference, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.tasks import alone, evaluate, look, train, train_by_hand, train_two


class CurveTests(Suite):
    """The losses of a run do not depend on how many processes it has."""

    def laid_out(self, strategy: str) -> Settings:
        """fp32 under a strategy that the device has."""
        if strategy.startswith("fsdp") and not self.resolved[0].caps.sharding:
            pytest.skip(f"{self.device} cannot shard")
        return replace(FP32, strategy=strategy)

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_same_curve(self, tmp_path: Path, text: bool, strategy: str) -> None:
        """P2: the same samples and losses at worlds 1 to 4 and accumulation 1, 2, 4, with ragged ends and varying lengths."""
        settings = self.laid_out(strategy)
        trial = Trial(rows=103, batch=48, text=text, optimizer="adamw" if text else "sgd", clip=0.3)
        losses, samples = self.curve(1, trial, tmp_path / "one")
        assert len(losses) == 9 and {len(ids) for ids in samples} == {48, 7}
        for size, forwards in product(self.worlds(1, 2, 3, 4), (1, 2, 4)):
            if (size, forwards) == (1, 1):
                continue
            cut = replace(settings, micro_batch=trial.batch // size // forwards)
            other, also = self.curve(size, trial, tmp_path / f"{size}-{forwards}", cut)
            assert also == samples, f"world {size}, accumulation {forwards}: other samples"
            assert largest_difference(other, losses) <= SAME, f"world {size}, accumulation {forwards}"

    @pytest.mark.parametrize("loader", ["stream", "shuffled", "weighted", "batched", "whole"])
    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_loaders(self, tmp_path: Path, text: bool, loader: str) -> None:
        """P2: samplers, batch samplers and streams of the script's own are kept, and give the same curve at every world."""
        trial = Trial(text=text, loader=loader, optimizer="adamw" if text else "sgd")
        losses, samples = self.curve(1, trial, tmp_path / "one")
        assert len(losses) == 12 and {len(ids) for ids in samples} == {8, 2}
        for size, micro in ((1, 3), (3, 2), (4, None)):
            if size <= self.largest_world:
                settings = replace(FP32, micro_batch=micro)
                other, also = self.curve(size, trial, tmp_path / f"{size}-{micro}", settings)
                assert also == samples, f"world {size}, micro-batch {micro}: other samples"
                assert largest_difference(other, losses) <= SAME, f"world {size}, micro-batch {micro}"

    def test_a_sampler_without_length(self, tmp_path: Path) -> None:
        """P2: a sampler that never ends gives the same samples at every world."""
        trial = Trial(loader="endless", epochs=None, steps=5, optimizer="sgd")
        losses, samples = self.curve(1, trial, tmp_path / "one")
        assert len(losses) == 5
        for size in self.worlds(2, 3):
            other, also = self.curve(size, trial, tmp_path / str(size))
            assert also == samples and largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("workers", [0, 2])
    def test_streams_that_draw(self, tmp_path: Path, workers: int) -> None:
        """P2: a stream may draw its order, and its collate function noise: all ranks read the same, and keep their rows."""
        trial = Trial(rows=30, loader="shuffled", workers=workers, noise=0.3, dropout=0.2, epochs=2, optimizer="sgd")
        settings = replace(FP32, virtual_ranks=6)
        losses, samples = self.curve(1, trial, tmp_path / "one", settings)
        assert sorted(i for ids in samples[: len(samples) // 2] for i in ids) == list(range(30))
        assert samples[0] != samples[len(samples) // 2]
        for size in self.worlds(2, 3):
            other, also = self.curve(size, trial, tmp_path / str(size), settings)
            assert also == samples and largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_the_loop_by_hand(self, tmp_path: Path, text: bool) -> None:
        """P2: the losses are those of the plain loop over the same batches, clipping and schedule included."""
        trial = Trial(text=text, optimizer="sgd", clip=0.3)
        losses, seen = self.curve(1, trial, tmp_path)
        assert largest_difference(losses, train_by_hand(trial, Settings().seed, seen)) <= 1e-5

    @pytest.mark.parametrize("every", [1, 2])
    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_two_optimizers_and_an_idle_parameter(self, tmp_path: Path, strategy: str, every: int) -> None:
        """P2: several optimizers, one that steps now and then among them, parameters without gradient and a loop that was left
        early give the same curve everywhere."""
        trial = Trial(epochs=2)
        one = self.results(1, train_two, trial, every, folder=tmp_path / "one")[0]
        losses = losses_of(tmp_path / "one")
        assert len(losses) == one["steps"] == 8 and one["signature"] == "(x: 'torch.Tensor') -> 'torch.Tensor'"
        for size, micro in ((1, 3), *((size, None) for size in (2, 3) if size <= self.largest_world)):
            settings = Settings(precision="fp32", micro_batch=micro, strategy=strategy)
            for rank in self.results(size, train_two, trial, every, folder=tmp_path / f"{size}-{micro}", settings=settings):
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

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_fewer_rows_than_ranks(self, tmp_path: Path, strategy: str) -> None:
        """P2: a rank without rows keeps in step and changes nothing."""
        settings = self.laid_out(strategy)
        trial = Trial(rows=10, batch=3, optimizer="sgd")
        losses, seen = self.curve(1, trial, tmp_path / "one")
        assert {len(ids) for ids in seen} == {3, 1}
        for size in self.worlds(2, 4):
            other, also = self.curve(size, trial, tmp_path / str(size), settings)
            assert also == seen and largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_virtual_ranks(self, tmp_path: Path, strategy: str) -> None:
        """P2: under --virtual-ranks the curve is the same at every world, with dropout and random augmentation too."""
        settings = replace(self.laid_out(strategy), virtual_ranks=12)
        for name, trial in (("text", Trial(text=True, dropout=0.3)), ("rows", Trial(dropout=0.3, noise=0.5, rows=28))):
            losses, seen = self.curve(1, trial, tmp_path / name / "one", settings)
            plain, _ = self.curve(1, replace(trial, dropout=0.0, noise=0.0), tmp_path / name / "plain")
            assert largest_difference(losses, plain) > 0.01, "nothing was drawn"
            for size in self.worlds(2, 3, 4):
                other, also = self.curve(size, trial, tmp_path / name / str(size), settings)
                assert also == seen and largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize(
        "trial",
        [
            Trial(text=True, dropout=0.3, clip=0.3),
            Trial(noise=0.5, dropout=0.3, rows=28, loader="weighted"),
            Trial(noise=0.5, dropout=0.3, loader="shuffled", workers=1, optimizer="sgd"),
            Trial(rows=10, batch=3, dropout=0.3),
        ],
        ids=["text", "rows", "stream", "few-rows"],
    )
    def test_deterministic(self, tmp_path: Path, trial: Trial) -> None:
        """P2: under --deterministic losses and weights are equal to the bit at every world."""
        settings = replace(FP32, virtual_ranks=12, deterministic=True)
        self.needs(settings)
        (one,) = self.results(1, train, trial, folder=tmp_path / "1", settings=settings)
        losses = losses_of(tmp_path / "1")
        for size in self.worlds(2, 3, 4):
            for rank in self.results(size, train, trial, folder=tmp_path / str(size), settings=settings):
                assert all(torch.equal(rank["weights"][name], value) for name, value in one["weights"].items())
            assert losses_of(tmp_path / str(size)) == losses

    def test_loader_workers(self, tmp_path: Path) -> None:
        """P2: random augmentation in loader workers is a sample's own, whatever the world and the micro-batch."""
        trial = Trial(workers=2, noise=0.5, epochs=2, optimizer="sgd")
        losses, _ = self.curve(1, trial, tmp_path / "one")
        assert losses != self.curve(1, Trial(epochs=2, optimizer="sgd"), tmp_path / "plain")[0]
        for size in self.worlds(1, 2):
            other, _ = self.curve(size, trial, tmp_path / str(size), Settings(precision="fp32", micro_batch=2))
            assert largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_evaluation_within_training(self, tmp_path: Path, strategy: str) -> None:
        """P2: an evaluation feed reads every row once over all ranks, and leaves the training feed around it alone."""
        settings = replace(self.laid_out(strategy), micro_batch=2)
        one: list[float] = []
        for size in self.worlds(1, 2, 3, 4):
            ranks = self.results(size, evaluate, Trial(epochs=1), folder=tmp_path / str(size), settings=settings)
            assert ranks[0]["steps"] == 4
            for step in range(4):
                assert sorted(i for rank in ranks for i in rank["ids"][step]) == list(range(26))
            one = one or ranks[0]["losses"]
            for rank in ranks:
                assert all(mean == 12.5 for mean in rank["means"])
                assert largest_difference(rank["losses"], one) <= SAME

    def test_equal_weights_and_tied_ones(self, tmp_path: Path) -> None:
        """scope builds equal weights on every rank; tied ones stay tied; a deep copy of a prepared model is independent."""
        size = self.worlds(1, 2)[-1]
        ranks = self.results(size, look, folder=tmp_path)
        for rank in ranks:
            assert rank["tied"] and rank["copied"] == 0 and rank["own"] > 0
            assert all(torch.equal(rank["weights"][name], value) for name, value in ranks[0]["weights"].items())
