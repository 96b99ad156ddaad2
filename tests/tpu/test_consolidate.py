"""Files that ranks under FSDP v1 wrote without hwal: one checkpoint of them, as torch_xla's own function would make it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

from hwal.env import Settings  # noqa: E402
from hwal.errors import CheckpointError  # noqa: E402
from hwal_torch.harness import run_world  # noqa: E402
from hwal_torch.suite.jobs import Trial  # noqa: E402
from hwal_torch.suite.tasks import train  # noqa: E402
from hwal_tpu.consolidate import consolidate, find, main  # noqa: E402

from . import v1_files  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_as_torch_xla_does_it(tmp_path: Path, size: int) -> None:
    """Cut by torch_xla's class, flattened or not, in one unit or nested: the weights that the model had, to the bit."""
    pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")
    (outcome,) = run_world(
        "tpu:cpu", 1, v1_files.write, size, tmp_path, run_dir=tmp_path / "run", settings=Settings(), limit=400
    )
    assert outcome.error is None, outcome.error
    before = v1_files.model().state_dict()
    for kind, theirs in outcome.result.items():
        assert consolidate(tmp_path / kind, tmp_path / kind / "out") == (len(before), ["model.safetensors"])
        ours = load_file(tmp_path / kind / "out" / "model.safetensors")
        for other in (theirs, before):
            assert ours.keys() == other.keys(), kind
            for name, value in other.items():
                assert torch.equal(ours[name], value) and ours[name].dtype == value.dtype, (kind, name)


def rank_file(folder: Path, rank: int, size: int, name: str = "", says: int | None = None) -> None:
    folder.mkdir(exist_ok=True)
    shard = {"_fsdp_shard.weight": torch.arange(4.0) + 4 * rank}
    info = {"_orig_name": "_fsdp_wrapped_module._fpw_module.weight", "_orig_size": torch.Size([2, 3])}
    infos = {"": {"_fsdp_shard.weight": info}}
    metadata: dict[str, Any] = {"shard_info": infos, "flatten_info": {}, "buffer_info": {}, "world_size": size}
    metadata["rank"] = rank if says is None else says
    torch.save({"model": shard, "shard_metadata": metadata}, folder / f"{name}rank-{rank}-of-{size}.pth")


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    for rank in range(2):
        rank_file(tmp_path / "ranks", rank, 2, "epoch_3_")
    command = [sys.executable, "-m", "hwal_tpu.consolidate", str(tmp_path / "ranks")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert f"1 tensors in {tmp_path / 'ranks'}: model.safetensors" in done.stderr
    assert torch.equal(load_file(tmp_path / "ranks" / "model.safetensors")["weight"], torch.arange(6.0).view(2, 3))


@pytest.mark.slow
def test_resume_tells_of_the_command(tmp_path: Path) -> None:
    rank_file(tmp_path / "ranks", 0, 1)
    settings = Settings(resume=str(tmp_path / "ranks"))
    (outcome,) = run_world("cpu", 1, train, Trial(), run_dir=tmp_path / "run", settings=settings)
    assert f"python -m hwal_tpu.consolidate {tmp_path / 'ranks'} makes model.safetensors" in (outcome.error or ""), outcome


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        rank_file(tmp_path, rank, 4)
    with pytest.raises(CheckpointError, match="2 of 4 ranks' files are missing: rank 1, 3"):
        find(tmp_path)


def test_files_of_two_saves_are_refused(tmp_path: Path) -> None:
    for name in ("epoch_1_", "epoch_2_"):
        rank_file(tmp_path, 0, 1, name)
    with pytest.raises(CheckpointError, match="files of 2 saves: epoch_1_rank-…-of-1"):
        find(tmp_path)


def test_a_file_under_another_ranks_name_is_refused(tmp_path: Path) -> None:
    rank_file(tmp_path, 0, 2)
    rank_file(tmp_path, 1, 2, says=0)
    with pytest.raises(CheckpointError, match="saved by rank 0 of 2, and its name says another"):
        consolidate(tmp_path, tmp_path)


def test_files_that_cannot_be_read_end_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank-0-of-1.pth").write_bytes(b"not torch's")
    assert main([str(tmp_path)]) == 1
    assert "hwal: error: it cannot be read" in capsys.readouterr().err
    torch.save({"model": {}}, tmp_path / "rank-0-of-1.pth")
    assert main([str(tmp_path)]) == 1
    assert "it holds no model with its shard_metadata" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    for words in ([], ["a", "b", "c"], [str(tmp_path), "--out"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("hwal: error: FOLDER, and OUT") and f"not {' '.join(words) or 'nothing'}\n" in said
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m hwal_tpu.consolidate FOLDER [OUT]\n\nOne checkpoint of")


def test_ranks_of_different_models_are_refused(tmp_path: Path) -> None:
    rank_file(tmp_path, 0, 2)
    torch.save({"model": {}, "shard_metadata": {"rank": 1, "world_size": 2}}, tmp_path / "rank-1-of-2.pth")
    with pytest.raises(CheckpointError, match="other tensors than rank 0's: _fsdp_shard"):
        consolidate(tmp_path, tmp_path)


def test_an_older_file_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_file(tmp_path, 0, 1)
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hwal_tpu.consolidate.assemble", full)
    assert main([str(tmp_path)]) == 1
    assert load_file(tmp_path / "model.safetensors")["weight"].shape == (1,)
    assert not list(tmp_path.glob(".consolidate-*"))


def test_metadata_that_describes_another_model(tmp_path: Path) -> None:
    rank_file(tmp_path, 0, 1)
    path = tmp_path / "rank-0-of-1.pth"
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "shard_metadata": {**saved["shard_metadata"], "shard_info": {}}}, path)
    with pytest.raises(CheckpointError, match="its shard_metadata does not describe its model: KeyError"):
        consolidate(tmp_path, tmp_path)


def test_files_of_another_model_are_not_mixed_with(tmp_path: Path) -> None:
    for rank in range(2):
        rank_file(tmp_path, rank, 2)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"files of another model already: model-00001-of-00002\.safetensors"):
        consolidate(tmp_path, tmp_path)
