"""P3, portable checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hwal.checkpoint import verify
from hwal.env import Settings
from hwal.errors import EXIT_PREEMPTED
from hwal_torch.suite.base import FP32, SAME, Suite, largest_difference, losses_of
from hwal_torch.suite.jobs import Trial
from hwal_torch.suite.saves import (
    save_alone,
    save_and_fail,
    save_each,
    save_held_up,
    save_in_vain_and_be_stopped,
    save_with_little_room,
    scaling,
)
from hwal_torch.suite.tasks import train

Place = tuple[str, int, int]  # strategy, ranks, machines

ANYWHERE: tuple[Place, ...] = (
    ("single", 1, 1),
    *((strategy, size, 1) for strategy in ("ddp", "fsdp:full") for size in (2, 3, 4)),
)
BESIDES: tuple[Place, ...] = (("fsdp:grad-op", 2, 1), ("fsdp:hybrid", 4, 2), ("fsdp:full+offload", 2, 1))
SOME: tuple[Place, ...] = (("single", 1, 1), ("ddp", 2, 1), ("fsdp:full", 3, 1))
PAIRS: tuple[tuple[Place, tuple[Place, ...]], ...] = (
    *((place, ANYWHERE + BESIDES) for place in SOME),
    *((place, ANYWHERE) for place in ANYWHERE if place not in SOME),
    *((place, SOME) for place in BESIDES),
)
"""Where a run is saved, and where it goes on: all pairs of single, ddp and fsdp:full, and some with the rest."""


class CheckpointTests(Suite):
    """A run goes on from a checkpoint as if it had never stopped."""

    def holds(self, place: Place) -> bool:
        """Whether the device has a place of that kind."""
        strategy, size, _ = place
        return size <= self.largest_world and (not strategy.startswith("fsdp") or self.resolved[0].caps.sharding)

    def held(self, *places: Place) -> list[Place]:
        return [place for place in places if self.holds(place)]

    def at(self, place: Place, trial: Trial, folder: Path, **settings: str) -> list[float]:
        """The curve of a run in a place."""
        strategy, size, nodes = place
        chosen = Settings(precision="fp32", strategy=self.named(strategy), **settings)  # type: ignore[arg-type]
        self.results(size, train, trial, folder=folder, settings=chosen, nodes=nodes)
        return losses_of(folder)

    @pytest.mark.parametrize(
        ("loader", "feeds", "save_at"), [("map", 1, 6), ("stream", 1, 6), ("nested", 1, 6), ("map", 2, 14), ("map", 2, 8)]
    )
    def test_resume(self, tmp_path: Path, loader: str, feeds: int, save_at: int) -> None:
        """P3: a run resumed within an epoch goes on as if it had never stopped: order, dropout, schedule, optimizer."""
        trial = Trial(dropout=0.2, noise=0.1, loader=loader, feeds=feeds, save_at=save_at)
        whole = self.results(1, train, trial, folder=tmp_path / "whole")[0]
        resumed = Settings(precision="fp32", resume=str(tmp_path / "whole"))
        rest = self.results(1, train, replace(trial, save_at=None), folder=tmp_path / "rest", settings=resumed)[0]
        assert len(whole["steps"]) == 12 * feeds
        assert rest["steps"] == whole["steps"][save_at:]
        assert losses_of(tmp_path / "rest") == losses_of(tmp_path / "whole")[save_at:]
        assert rest["position"] == whole["position"]

    @pytest.mark.parametrize(("saved", "resumed"), PAIRS, ids=[f"{name}-{size}" for (name, size, _), _ in PAIRS])
    def test_anywhere(self, tmp_path: Path, saved: Place, resumed: tuple[Place, ...]) -> None:
        """P3: saved under one strategy and world, within an epoch, a run goes on under any other, with the same losses."""
        if not self.holds(saved):
            pytest.skip(f"{self.device} has no place for {saved[0]} at {saved[1]}")
        trial = Trial(text=True, blocks=2, save_at=6, steps=8)
        losses = self.at(saved, trial, tmp_path / "saved")
        for place in self.held(*resumed):
            folder = tmp_path / f"{place[0]}-{place[1]}"
            rest = self.at(place, replace(trial, save_at=None), folder, resume=str(tmp_path / "saved"))
            assert largest_difference(rest, losses[6:]) <= SAME, place

    @pytest.mark.parametrize("optimizer", ["momentum", "factored"])
    def test_state_of_any_shape(self, tmp_path: Path, optimizer: str) -> None:
        """P3: so too an optimizer whose state has the parameters' shapes, or others."""
        trial = Trial(text=True, blocks=2, optimizer=optimizer, save_at=6, steps=8)
        places = self.held(("single", 1, 1), ("fsdp:full", 3, 1), ("fsdp:full", 2, 1))
        for saved in places[:2]:
            losses = self.at(saved, trial, tmp_path / saved[0])
            for place in places:
                folder = tmp_path / f"{saved[0]}-{place[0]}-{place[1]}"
                rest = self.at(place, replace(trial, save_at=None), folder, resume=str(tmp_path / saved[0]))
                assert largest_difference(rest, losses[6:]) <= SAME, (saved, place)

    def test_the_files_are_the_same(self, tmp_path: Path) -> None:
        """P3: what is on disk does not tell which strategy saved it."""
        places = self.held(("single", 1, 1), ("ddp", 2, 1), ("fsdp:full", 3, 1), ("fsdp:hybrid", 4, 2))
        found = []
        for place in places:
            folder = tmp_path / place[0]
            self.at(place, Trial(text=True, blocks=1, save_at=1, steps=1), folder)
            checkpoint = folder / "checkpoints" / "step-00000001"
            sets = [load_file(checkpoint / name) for name in ("model.safetensors", "state.safetensors")]
            headers = [(checkpoint / name).read_bytes()[:2000] for name in ("model.safetensors", "state.safetensors")]
            found.append((sets, headers, sorted(verify(checkpoint).files)))
        (first, *_), *_ = found
        assert "head.weight" not in first[0] and "embed.weight" in first[0], "tied weights are there once"
        for sets, headers, files in found:
            assert files == found[0][2] and len(headers) == 2
            for ours, theirs in zip(sets, first, strict=True):
                assert list(ours) == list(theirs)
                assert all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6) for name in ours)

    @pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
    def test_saving_beside_training(self, tmp_path: Path, strategy: str) -> None:
        """P3: rt.save() returns before the disk is asked for anything; what comes there is of the moment of the call."""
        for place in self.held(("single", 1, 1), (strategy, 2, 1)):
            settings = replace(FP32, strategy=self.named(place[0]))
            trial = Trial(text=True, blocks=1, save_at=2, epochs=2)
            folder = tmp_path / f"{place[1]}"
            seen = self.results(place[1], save_held_up, trial, folder=folder, settings=settings)[0]
            assert not seen["early"]
            assert verify(Path(seen["folder"])).position.step == 2
            saved = load_file(Path(seen["folder"]) / "model.safetensors")
            assert all(torch.equal(value, seen["saved"][name]) for name, value in saved.items())
            assert not all(torch.equal(value, seen["later"][name]) for name, value in saved.items())

    @pytest.mark.parametrize("then", ["trains on", "ends"])
    @pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp:full"])
    def test_a_full_disk_beside_training(self, tmp_path: Path, strategy: str, then: str) -> None:
        """P3: a save that fails on one rank while training goes on is the error of all, and the one before it stays."""
        place = (strategy, 1 if strategy == "single" else 2, 1)
        if not self.holds(place):
            pytest.skip(f"{self.device} has no place for {strategy}")
        rank = 1 if strategy == "fsdp:full" else 0
        settings = replace(FP32, strategy=self.named(strategy))
        trial = Trial(text=True, blocks=1, save_at=3, steps=3 if then == "ends" else 12)
        outcomes = self.run(place[1], save_with_little_room, trial, rank, folder=tmp_path, settings=settings)
        for outcome in outcomes:
            assert (outcome.error or "").startswith("OutputError: the checkpoint could not be written: File too large"), outcome
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
        assert verify(tmp_path / "checkpoints" / "step-00000001").position.step == 1

    @pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp:full"])
    def test_a_script_that_fails_beside_a_save(self, tmp_path: Path, strategy: str) -> None:
        """P3: the checkpoint that the script had asked for is finished before the run ends."""
        place = (strategy, 1 if strategy == "single" else 2, 1)
        if not self.holds(place):
            pytest.skip(f"{self.device} has no place for {strategy}")
        settings = replace(FP32, strategy=self.named(strategy))
        outcomes = self.run(place[1], save_and_fail, Trial(save_at=2), folder=tmp_path, settings=settings)
        assert "the script's own mistake" in (outcomes[-1].error or "")
        assert verify(tmp_path / "checkpoints" / "step-00000002").position.step == 2

    @pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp:full"])
    def test_a_signal_after_a_save_that_failed(self, tmp_path: Path, strategy: str) -> None:
        """P4: an earlier save that failed does not take the last chance to save."""
        place = (strategy, 1 if strategy == "single" else 2, 1)
        if not self.holds(place):
            pytest.skip(f"{self.device} has no place for {strategy}")
        settings = replace(FP32, strategy=self.named(strategy))
        outcomes = self.run(place[1], save_in_vain_and_be_stopped, Trial(save_at=2), folder=tmp_path, settings=settings)
        assert [outcome.exit_code for outcome in outcomes] == [EXIT_PREEMPTED] * place[1], outcomes
        (folder,) = (tmp_path / "checkpoints").iterdir()
        assert verify(folder).position.step in (2, 3)

    def test_the_main_rank_saves_alone(self, tmp_path: Path) -> None:
        """P3: where it holds the whole model, the main rank may be the only one to save."""
        (size,) = self.worlds(2)
        self.results(size, save_alone, Trial(save_at=2), folder=tmp_path, settings=Settings(precision="fp32", strategy="ddp"))
        assert verify(tmp_path / "checkpoints" / "step-00000002").position.step == 2

    def test_retention(self, tmp_path: Path) -> None:
        """P3: --keep leaves the newest and the best."""
        scores = [1.0, 5.0, 2.0, 5.0, float("inf"), 3.0]
        settings = Settings(precision="fp32", keep="last:2,best:score:max")
        self.results(1, save_each, Trial(steps=6), scores, folder=tmp_path, settings=settings)
        kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        assert kept == ["step-00000002", "step-00000005", "step-00000006"]

    def test_damaged_ones_are_passed_over(self, tmp_path: Path) -> None:
        """P3: a checkpoint that was cut short, or changed, is not loaded, and the one before it is."""
        run = tmp_path / "run"
        self.results(1, save_each, Trial(steps=4), [0.0] * 4, folder=run, settings=Settings(precision="fp32", keep="all"))
        newest, second = (run / "checkpoints" / f"step-0000000{step}" for step in (4, 3))
        (newest / "hwal.json").unlink()
        data = bytearray((second / "model.safetensors").read_bytes())
        data[-3] ^= 16
        (second / "model.safetensors").write_bytes(data)
        for size in self.worlds(1, 2):
            folder = tmp_path / str(size)
            settings = Settings(precision="fp32", resume=str(run))
            rank = self.results(size, train, Trial(steps=3), folder=folder, settings=settings)[-1]
            assert len(rank["steps"]) == 1 and losses_of(folder) == pytest.approx(losses_of(run)[2:3], rel=SAME)

    def test_loss_scaler(self, tmp_path: Path) -> None:
        """P3: the loss scaler goes on where it was."""
        self.needs(Settings(precision="fp16"))
        for size in self.worlds(1, 2):
            folder = tmp_path / str(size)
            trial = Trial(text=True, steps=5)
            begun, ended = self.results(size, scaling, trial, folder=folder, settings=Settings(precision="fp16"))[0]
            settings = Settings(precision="fp16", resume=str(folder))
            again, _ = self.results(size, scaling, trial, folder=tmp_path / f"{size}-again", settings=settings)[0]
            assert again == ended != begun

    def test_metrics_go_on(self, tmp_path: Path) -> None:
        """P3: resumed in its own folder, a run's metrics are those of a run that never stopped."""
        whole = self.at(("single", 1, 1), Trial(text=True, steps=9), tmp_path / "whole")
        trial = Trial(text=True, save_at=4, steps=6)
        self.at(("single", 1, 1), trial, tmp_path / "run")
        losses = self.at(("single", 1, 1), replace(trial, steps=9), tmp_path / "run", resume=str(tmp_path / "run"))
        steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(1, 10)) and losses == whole
