"""A run that goes on elsewhere, or with something changed: what is told, and what is an error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hwal.checkpoint import MANIFEST
from hwal_torch import loading
from tests.torch.places import error_of, results

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self, width: int = 4, name: str = "one", tied: bool = False) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(4, width))
        self.two = nn.Linear(width, 4)
        if tied:
            self.two.weight = self.get_submodule(name).weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *_ = self.children()
        return self.two(first(x))


def go(rt: Any, change: str = "") -> tuple[int, list[str]]:
    """One step, saved; with one thing changed about what is prepared."""
    said: list[str] = []
    rt.reporter.say = said.append
    if change == "told by rank 0" and rt.rank:
        loading.find = lambda *_: pytest.fail("only rank 0 looks for checkpoints")
    with rt.scope():
        arguments: dict[str, dict[str, Any]] = {"wider": {"width": 5}, "renamed": {"name": "uno"}, "tied": {"tied": True}}
        model = Net(**arguments.get(change, {}))
        others = [nn.Linear(2, 2)] if change == "one more model" else []
        trained = model.two if change == "another group" else model
        optimizers = [(torch.optim.SGD if change == "another optimizer" else torch.optim.AdamW)(trained.parameters(), lr=0.1)]
        if change == "one more optimizer":
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.1))
    rt.prepare(model, *others, *optimizers)
    begun = rt.steps_done
    for (x,) in rt.feed(DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=8)):
        rt.backward(model(x).mean())
        for optimizer in optimizers:
            rt.step(optimizer)
    rt.save()
    return begun, said


CHANGES = {
    "wider": "one.weight has shape (4, 4) in the checkpoint and (5, 4) in the model",
    "renamed": "the model is not the one that was saved; not in the checkpoint: uno.bias, uno.weight; "
    "only in the checkpoint: one.bias, one.weight",
    "tied": "tied now, and not in the checkpoint: two.weight",
    "one more model": "it holds no model-1.safetensors: fewer models were saved",
    "another optimizer": "the checkpoint's optimizer is AdamW, this run's is SGD",
    "another group": "the optimizer is not the one that was saved; only in the checkpoint: one.bias, one.weight",
    "one more optimizer": "the checkpoint holds 1 optimizers, rt.prepare() was given 2",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_named(tmp_path: Path, change: str) -> None:
    results(1, go, folder=tmp_path / "run")
    error = error_of(1, go, change, folder=tmp_path / "on", resume=str(tmp_path / "run"))
    assert error.startswith("CheckpointError") and CHANGES[change] in error


def test_what_is_not_as_it_was_is_told(tmp_path: Path) -> None:
    """And nothing where all is the same. Every rank goes on from what rank 0 chose."""
    results(2, go, folder=tmp_path / "run", strategy="fsdp:full")
    resume = str(tmp_path / "run")
    for begun, _ in results(2, go, "told by rank 0", folder=tmp_path / "a", resume=resume, strategy="fsdp:full"):
        assert begun == 1
    (_, said), _ = results(2, go, folder=tmp_path / "b", resume=resume, strategy="fsdp:full")
    assert f"resumed {resume}/checkpoints/step-00000001 at step 1" in said
    path = tmp_path / "run" / "checkpoints" / "step-00000001" / MANIFEST
    rewrite(path, versions={"torch": "1.2.3"}, about={"backend": "null", "precision": "bf16", "strategy": "fsdp:full"})
    ((_, said),) = results(1, go, folder=tmp_path / "c", resume=resume)
    now = torch.__version__.partition("+")[0]
    assert any(
        line.endswith(
            "at step 1; saved in bf16, by torch 1.2.3, on null, under fsdp:full, at world size 2; "
            f"goes on in fp32, by torch {now}, on cpu, under single, at world size 1"
        )
        for line in said
    ), said


def rewrite(path: Path, **fields: Any) -> None:
    """Changes fields of a manifest, None to leave one out, and seals it again."""
    document = {name: value for name, value in {**json.loads(path.read_text()), **fields}.items() if value is not None}
    text = json.dumps({**document, "digest": ""}, ensure_ascii=False)
    path.write_text(json.dumps({**document, "digest": hashlib.sha256(text.encode()).hexdigest()}))


def test_a_checkpoint_of_format_1_goes_on(tmp_path: Path) -> None:
    """It has no metrics and holds nothing of modules but their state."""
    results(1, go, folder=tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-00000001"
    state = json.loads((folder / "state.json").read_text())
    del state["held"]
    (folder / "state.json").write_text(json.dumps(state))
    files = json.loads((folder / MANIFEST).read_text())["files"]
    data = (folder / "state.json").read_bytes()
    files["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(folder / MANIFEST, files=files, format=1, metrics=None)
    assert [begun for begun, _ in results(1, go, folder=tmp_path / "on", resume=str(tmp_path / "run"))] == [1]


def test_no_checkpoint_to_go_on_from_is_the_error_of_all(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    error = error_of(2, go, folder=tmp_path / "on", resume=str(tmp_path / "run"))
    assert error.startswith("CheckpointError: there is no checkpoint to resume from")


def seeds(rt: Any) -> list[int]:
    """What a script draws after its scope."""
    with rt.scope():
        model = nn.Linear(2, 2)
    drawn = torch.randperm(50).tolist()
    rt.prepare(model)
    rt.save()
    return drawn


def test_the_runs_own_seed_holds_from_the_scope_on(tmp_path: Path) -> None:
    (first,) = results(1, seeds, folder=tmp_path / "run", seed=7)
    assert results(2, seeds, folder=tmp_path / "on", resume=str(tmp_path / "run"), seed=8) == [first, first]
    assert results(1, seeds, folder=tmp_path / "other", seed=8) != [first]
