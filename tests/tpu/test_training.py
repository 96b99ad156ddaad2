"""torch by PyTorch/XLA on XLA's CPU platform: the tpu backend with nothing but the chip missing. Run in XLA's environment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal.env import Settings  # noqa: E402
from hwal.errors import EXIT_PREEMPTED, PlanError  # noqa: E402
from hwal_torch.harness import Outcome, run_world  # noqa: E402
from hwal_torch.suite.base import largest_difference, losses_of  # noqa: E402
from hwal_torch.suite.jobs import Trial  # noqa: E402
from hwal_torch.suite.tasks import train  # noqa: E402

from . import jobs  # noqa: E402

pytestmark = pytest.mark.slow
PLACES = ("cpu", "tpu:cpu", "tpu:cpu:4")
SAME = 1e-5  # relative, of fp32 losses: other kernels add in another order


def run(device: str, task: Any, *args: Any, folder: Path, **settings: Any) -> Outcome:
    settings.setdefault("precision", "fp32")
    (outcome,) = run_world(device, 1, task, *args, run_dir=folder, settings=Settings(**settings), limit=400)
    return outcome


def result(device: str, task: Any, *args: Any, folder: Path, **settings: Any) -> Any:
    outcome = run(device, task, *args, folder=folder, **settings)
    assert outcome.error is None and outcome.exit_code is None, outcome.error
    return outcome.result


CURVES = {
    "ragged ends, clipping": (Trial(), {}),
    "sequences of many lengths": (Trial(text=True), {}),
    "accumulation": (Trial(text=True, optimizer="momentum"), {"micro_batch": 3}),
    "virtual ranks": (Trial(), {"virtual_ranks": 4}),
    "blocks, recomputed": (Trial(blocks=3), {"grad_checkpoint": True}),
}


@pytest.mark.parametrize("name", CURVES)
def test_one_curve_everywhere(tmp_path: Path, name: str) -> None:
    trial, settings = CURVES[name]
    curves = {}
    for place in PLACES:
        result(place, train, trial, folder=tmp_path / place, **settings)
        curves[place] = losses_of(tmp_path / place)
    assert len(curves["cpu"]) == 12
    for place in PLACES[1:]:
        assert largest_difference(curves[place], curves["cpu"]) < SAME, place


@pytest.mark.parametrize("strategy", ["ddp", "fsdp:full"])
def test_both_ways_to_lay_a_model_over_devices(tmp_path: Path, strategy: str) -> None:
    """The same curve; a device holds all of the parameters, or its part."""
    alone = result("tpu:cpu", jobs.shares, folder=tmp_path / "alone")
    spread = result("tpu:cpu:4", jobs.shares, folder=tmp_path / "spread", strategy=strategy)
    assert largest_difference(losses_of(tmp_path / "spread"), losses_of(tmp_path / "alone")) < SAME
    assert alone["parameters"] == alone["all parameters"] == spread["all parameters"]
    parts = 4 if strategy == "fsdp:full" else 1
    assert spread["parameters"] == alone["parameters"] / parts
    assert spread["state"] == alone["state"] / parts


@pytest.mark.parametrize("saved", PLACES)
def test_a_checkpoint_goes_on_everywhere(tmp_path: Path, saved: str) -> None:
    """Saved within an epoch on one, with its optimizer and schedule, it goes on on each."""
    trial = Trial(save_at=6)
    result(saved, train, trial, folder=tmp_path / "whole")
    whole = losses_of(tmp_path / "whole")
    for place in PLACES:
        result(place, train, replace(trial, save_at=None), folder=tmp_path / place, resume=str(tmp_path / "whole"))
        assert largest_difference(losses_of(tmp_path / place), whole[6:]) < SAME, place


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """torch_xla's own way to the device unties them."""
    told = result("tpu:cpu:4", jobs.tied, folder=tmp_path)
    assert told == {"tied": True, "in the optimizer": True, "after training": True}


def test_few_graphs_and_no_reads(tmp_path: Path) -> None:
    """50 steps over lines of many lengths: padded to a multiple they need few graphs; no step reads from the device."""
    plain = result("tpu:cpu", jobs.lines, None, 16, folder=tmp_path / "plain")
    padded = result("tpu:cpu", jobs.lines, {0: 0, 1: -100}, 50, folder=tmp_path / "padded")
    assert padded["graphs"] <= 4 and plain["graphs"] > 8
    assert padded["read in steps"] == [], padded
    assert len(losses_of(tmp_path / "padded")) == 50
    assert largest_difference(losses_of(tmp_path / "padded")[:16], losses_of(tmp_path / "plain")) < SAME


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    outcome = run("tpu:cpu", train, Trial(nan_at=5), folder=tmp_path)
    assert outcome.error is not None and "the loss of step 5 is nan" in outcome.error, outcome
    assert not (tmp_path / "checkpoints").exists()


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    curves = []
    for place in PLACES[:2]:
        result(place, train, Trial(nan_at=5), folder=tmp_path / place, on_nan="skip")
        curves.append([loss for loss in losses_of(tmp_path / place) if loss != "nan"])
    assert len(curves[0]) == len(curves[1]) == 11
    assert largest_difference(curves[1], curves[0]) < SAME


def test_a_signal_saves(tmp_path: Path) -> None:
    """SIGTERM after step 5: saved, and gone on from on the CPU, with the curve of a run that was not stopped."""
    whole = tmp_path / "whole"
    result("cpu", train, Trial(), folder=whole)
    stopped = run("tpu:cpu:4", train, Trial(stop_at=5), folder=tmp_path / "stopped")
    assert stopped.exit_code == EXIT_PREEMPTED
    word = json.loads((tmp_path / "stopped" / "preempted.json").read_text())
    done = losses_of(tmp_path / "stopped")
    assert word["signal"] == "SIGTERM" and word["step"] == len(done) in (5, 6)
    result("cpu", train, Trial(), folder=tmp_path / "rest", resume=str(tmp_path / "stopped"))
    assert largest_difference(done + losses_of(tmp_path / "rest"), losses_of(whole)) < SAME


def test_bf16(tmp_path: Path) -> None:
    """Autocast, master weights in fp32: near fp32's curve, and not it."""
    result("cpu", train, Trial(), folder=tmp_path / "fp32")
    result("tpu:cpu:4", train, Trial(), folder=tmp_path / "bf16", precision="bf16")
    assert 1e-6 < largest_difference(losses_of(tmp_path / "bf16"), losses_of(tmp_path / "fp32")) < 0.1


@pytest.mark.parametrize("device", ["tpu:cpu", "tpu:cpu:4"])
def test_what_the_script_logs_stands_in_its_line(tmp_path: Path, device: str) -> None:
    """Values on the device are read late, and stand with their own step."""
    logged = result(device, jobs.logs, folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not any("several" in line for line in lines)
    assert [line["twice"] for line in lines] == pytest.approx([2 * line["loss"] for line in lines], rel=1e-6)
    assert logged == {"mean": pytest.approx(0.25), "evaluated": 3}


def test_compiling_is_no_hang(tmp_path: Path) -> None:
    """A graph may take minutes to compile, and a signal that comes meanwhile waits for it."""
    assert result("tpu:cpu", jobs.compiling, folder=tmp_path)


def test_shards_are_the_compilers_to_gather(tmp_path: Path) -> None:
    result("tpu:cpu:2", train, Trial(steps=1), folder=tmp_path, strategy="fsdp:grad-op")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["strategy"]["value"] == "fsdp:full" and "fsdp:grad-op asked for" in plan["strategy"]["why"]


@pytest.mark.parametrize("strategy", ["fsdp:full+offload", "fsdp:hybrid"])
def test_strategies_that_xla_does_not_have(tmp_path: Path, strategy: str) -> None:
    with pytest.raises(PlanError, match="on a TPU parameters are cut over all devices and stay there"):
        run("tpu:cpu:2", train, Trial(), folder=tmp_path, strategy=strategy)


def test_a_batch_that_is_a_mapping_of_another_kind_is_sent(tmp_path: Path) -> None:
    assert result("tpu:cpu", jobs.wrapped, folder=tmp_path) == ("UserDict", ["xla", "xla"])
