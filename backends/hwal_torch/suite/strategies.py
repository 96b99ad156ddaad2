"""Strategies: however parameters are laid over the ranks, it is the same training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwal.env import Settings
from hwal_torch.suite.base import FP32, SAME, Suite, largest_difference
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.layouts import beyond, build_apart, convolve, hold, overflow, train_normed, train_sometimes
from hwal_torch.suite.tasks import alone, train

SHARDED = (
    ("fsdp:full", 1),
    ("fsdp:grad-op", 1),
    ("fsdp:hybrid", 2),
    ("fsdp:hybrid-grad-op", 2),
    ("fsdp:full+offload", 1),
    ("fsdp:hybrid", 1),
)
"""Strategy, and the machines it is tried on."""


class StrategyTests(Suite):
    """One process, DDP and every kind of FSDP train one and the same model."""

    def sharding(self, *sizes: int) -> list[int]:
        """Those of `sizes` at which the device can shard."""
        if not self.resolved[0].caps.sharding:
            pytest.skip(f"{self.device} cannot shard")
        return self.worlds(*sizes)

    @pytest.mark.parametrize(("strategy", "nodes"), SHARDED, ids=[f"{name}-{nodes}" for name, nodes in SHARDED])
    @pytest.mark.parametrize("text", [False, True], ids=["rows", "text"])
    def test_sharded_curve(self, tmp_path: Path, text: bool, strategy: str, nodes: int) -> None:
        """P2: every fsdp strategy has the losses and the weights of one process, ragged ends and accumulation included."""
        trial = Trial(text=text, blocks=3, epochs=2)
        losses, samples = self.curve(1, trial, tmp_path / "one")
        for size in self.sharding(*((4,) if nodes > 1 else (2, 3))):
            for micro in (None, 1):
                settings = Settings(precision="fp32", strategy=strategy, micro_batch=micro)
                folder = tmp_path / f"{size}-{micro}"
                other, also = self.curve(size, trial, folder, settings, nodes=nodes)
                assert also == samples
                assert largest_difference(other, losses) <= SAME, f"world {size}, micro-batch {micro}"

    @pytest.mark.parametrize("optimizer", ["momentum", "adagrad"])
    def test_sharded_optimizers(self, tmp_path: Path, optimizer: str) -> None:
        """P2: optimizers other than Adam work on shards too, also one that makes its state when it is built."""
        trial = Trial(text=True, blocks=2, optimizer=optimizer)
        losses, _ = self.curve(1, trial, tmp_path / "one")
        for size in self.sharding(2, 3):
            other, _ = self.curve(size, trial, tmp_path / str(size), sharded("fsdp:full"))
            assert largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_models_that_differ_are_made_equal(self, tmp_path: Path, strategy: str) -> None:
        """P2: built outside of scope, a model starts from rank 0's weights on every rank."""
        (size,) = self.sharding(2)
        ranks = self.results(size, build_apart, folder=tmp_path, settings=sharded(strategy))
        for weights, first in ranks:
            assert all(torch.equal(weights[name], value) for name, value in ranks[0][1].items())
            assert (first["inner.0.up.weight"] == ranks[0][1]["inner.0.up.weight"]).all() == (first is ranks[0][1])

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_weights_in_another_order(self, tmp_path: Path, strategy: str) -> None:
        """P2: weights that lie in memory in channels_last order train as in one process."""
        (size,) = self.sharding(2)
        one = self.results(1, convolve, folder=tmp_path / "one")[0]
        for weights in self.results(size, convolve, folder=tmp_path / "two", settings=sharded(strategy)):
            assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in one.items())

    @pytest.mark.parametrize(
        ("strategy", "kind", "told"),
        [
            ("fsdp:full", "sparse", "embed has sparse gradients, which cannot be sharded"),
            ("fsdp:full", "two dtypes", "Either holds parameters of torch.bfloat16 and torch.float32"),
            ("ddp", "two forwards", "a parameter was used in two forwards of one backward"),
        ],
    )
    def test_what_a_strategy_cannot_do(self, tmp_path: Path, strategy: str, kind: str, told: str) -> None:
        """What a strategy cannot do is an error that says what to do."""
        (size,) = self.sharding(2)
        for outcome in self.run(size, beyond, kind, folder=tmp_path, settings=sharded(strategy)):
            assert f"ScriptError: {told}" in (outcome.error or ""), outcome

    def test_an_optimizer_that_cannot_work_on_shards(self, tmp_path: Path) -> None:
        """An optimizer that torch cannot run on shards is an error that says what to do."""
        (size,) = self.sharding(2)
        for outcome in self.run(size, train, Trial(optimizer="adafactor"), folder=tmp_path, settings=sharded("fsdp:full")):
            assert "ScriptError: Adafactor cannot work on sharded parameters" in (outcome.error or ""), outcome

    def test_a_rank_holds_its_share(self, tmp_path: Path) -> None:
        """Sharded, a rank holds a W-th of parameters and optimizer state; the blocks are units; tied weights stay tied."""
        trial = Trial(text=True, blocks=3)
        for size in self.sharding(2, 4):
            ranks = self.results(size, hold, trial, folder=tmp_path / str(size), settings=sharded("fsdp:full"))
            assert sum(rank["parameters"] for rank in ranks) - (size - 1) * 3 == ranks[0]["all"]  # 3 numbers stay whole
            for rank in ranks:
                assert rank["parameters"] <= ranks[0]["all"] / size * 1.2 + 3
                assert rank["state"] == 2 * (rank["parameters"] - 3)
                assert rank["units"] == 4 and rank["tied"]
            if size == 4:
                hybrid = self.results(size, hold, trial, folder=tmp_path / "hybrid", settings=sharded("fsdp:hybrid"), nodes=2)
                halves = self.results(2, hold, trial, folder=tmp_path / "halves", settings=sharded("fsdp:full"))
                assert [rank["parameters"] for rank in hybrid] == 2 * [rank["parameters"] for rank in halves]

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full", "fsdp:grad-op"])
    def test_parameters_that_some_ranks_do_not_use(self, tmp_path: Path, strategy: str) -> None:
        """P2: what weight decay and momentum do to parameters that few rows use, or none, is the same at every world."""
        trial = Trial(batch=6)
        one = self.results(1, train_sometimes, trial, folder=tmp_path / "one")[0]
        for size in self.sharding(2, 3):
            for micro in (None, 1):
                settings = Settings(precision="fp32", strategy=strategy, micro_batch=micro)
                for weights in self.results(
                    size, train_sometimes, trial, folder=tmp_path / f"{size}-{micro}", settings=settings
                ):
                    for name, value in one.items():
                        assert torch.allclose(weights[name], value, atol=2e-6), name

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_every_rank_evaluates_one_model(self, tmp_path: Path, strategy: str) -> None:
        """Running statistics are rank 0's on every rank, so that all of them answer alike."""
        (size,) = self.sharding(2)
        ranks = self.results(size, train_normed, folder=tmp_path, settings=sharded(strategy))
        for name, value in ranks[0].items():
            assert torch.equal(ranks[1][name], value), name

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_an_overflow_on_one_rank(self, tmp_path: Path, strategy: str) -> None:
        """P6: under fp16 a gradient that overflows in one rank's shard makes all of them leave the update out."""
        self.needs(Settings(precision="fp16"))
        (size,) = self.sharding(2)
        settings = Settings(precision="fp16", strategy=strategy)
        for moved in self.results(size, overflow, folder=tmp_path, settings=settings):
            assert max(moved) == 0

    @pytest.mark.parametrize(
        ("kind", "told"),
        [
            ("never prepared", "a gradient of this step was not brought together"),
            ("called in parts", "a parameter was used that is sharded over the ranks"),
        ],
    )
    def test_no_rank_trains_a_shard_alone(self, tmp_path: Path, kind: str, told: str) -> None:
        """P2: what cannot be brought together under FSDP is an error on every rank."""
        (size,) = self.sharding(2)
        for outcome in self.run(size, alone, kind, folder=tmp_path, settings=sharded("fsdp:full")):
            assert f"ScriptError: {told}" in (outcome.error or ""), outcome

    def test_unfrozen_later(self, tmp_path: Path) -> None:
        """P2: a parameter that is unfrozen after prepare trains under FSDP as it does in one process."""
        one = self.results(1, alone, "unfrozen later", folder=tmp_path / "one")[0]
        for size in self.sharding(2, 3):
            for weights in self.results(
                size, alone, "unfrozen later", folder=tmp_path / str(size), settings=sharded("fsdp:full")
            ):
                assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in one.items())

    def test_auto(self, tmp_path: Path) -> None:
        """Left open, the strategy is ddp where a whole model fits on a device, and fsdp:full where it does not."""
        (size,) = self.sharding(2)
        trial = Trial(text=True, blocks=4, epochs=1)
        losses, _ = self.curve(1, trial, tmp_path / "one")
        large, small = 1 << 30, 1 << 16
        for memory, name in (((large, large), "ddp"), ((small, small), "fsdp:full"), ((large, small), "fsdp:full")):
            folder = tmp_path / f"{memory}"
            other, _ = self.curve(size, trial, folder, FP32, memory=memory)
            plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
            assert plan["strategy"]["value"] == name and "AdamW" in plan["strategy"]["why"]
            assert plan["mesh"] == {"fsdp" if "fsdp" in name else "dp": size}
            assert largest_difference(other, losses) <= SAME

    @pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp:full"])
    def test_recomputed_blocks(self, tmp_path: Path, strategy: str) -> None:
        """--grad-checkpoint changes nothing of the curve, with dropout too: to the bit, unless a compiler splits the sums."""
        size = 1 if strategy == "single" else self.sharding(2)[0]
        trial = Trial(text=True, blocks=3, dropout=0.2)
        settings = replace(FP32, strategy=self.named(strategy), virtual_ranks=4)
        losses, _ = self.curve(size, trial, tmp_path / "kept", settings)
        again, _ = self.curve(size, trial, tmp_path / "recomputed", replace(settings, grad_checkpoint=True))
        assert again == losses if self.resolved[0].caps.deterministic else largest_difference(again, losses) <= SAME


def sharded(strategy: str) -> Settings:
    """fp32 under a strategy."""
    return Settings(precision="fp32", strategy=strategy)
