"""What a script meets when it starts on XLA's CPU platform. Run in XLA's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwal.env import XLA_CACHE

SCRIPT = """
import torch, hwal
with hwal.start() as rt:
    with rt.scope():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    for x in rt.feed(torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)):
        rt.backward(model(x).square().mean())
        rt.step(optimizer)
"""


def start(folder: Path, device: str = "tpu:cpu", **variables: str) -> tuple[int, str]:
    """Exit code of the script, run by plain python, and what it printed."""
    pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HWAL_DEVICE": device, **variables}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_other_devices_than_planned(tmp_path: Path) -> None:
    """A variable that says another number is not trained on in silence."""
    code, said = start(tmp_path, "tpu:cpu:4", CPU_NUM_DEVICES="2")
    assert code == 1 and "Traceback" not in said, said
    assert "XLA has opened 2 devices, and the plan has 4" in said and "unset CPU_NUM_DEVICES" in said


@pytest.mark.slow
def test_graphs_are_kept_where_a_folder_is_named(tmp_path: Path) -> None:
    """XLA's CPU platform cannot read them back, and that is told; a TPU's can."""
    for told in (False, True):
        code, said = start(tmp_path, **{XLA_CACHE: str(tmp_path / "graphs")})
        assert code == 0 and ("there could not be used" in said) == told, said
    assert list((tmp_path / "graphs").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a file in the place of a folder")
def test_graphs_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    (tmp_path / "graphs").write_text("a file")
    code, said = start(tmp_path, **{XLA_CACHE: str(tmp_path / "graphs")})
    assert code == 0 and f"compiled graphs are not kept: {tmp_path / 'graphs'}: File exists" in said, said
