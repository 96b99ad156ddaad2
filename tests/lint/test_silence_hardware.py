"""Code that asks which hardware there is, and code on the host that drives compiled code: silence."""

from __future__ import annotations

import pytest

from hwal.lint import check

PROGRAMS: dict[str, str] = {
    "a library that serves all hardware": """\
import torch

def is_torch_xla_available():
    return False

if is_torch_xla_available():
    import torch_xla.core.xla_model as xm

class Trainer:
    def save(self):
        if is_torch_xla_available():
            xm.save(self.optimizer.state_dict(), "optimizer.pt")
        elif self.args.should_save:
            torch.save(self.optimizer.state_dict(), "optimizer.pt")
        torch.save(self.scheduler.state_dict(), "scheduler.pt")

    def device(self):
        if is_torch_xla_available():
            return xm.xla_device()
        elif torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("cpu")

    def train(self, loader):
        for inputs in loader:
            loss = self.training_step(inputs)
            if not is_torch_xla_available() and torch.isnan(loss):
                continue
            if self.kind != "deepspeed":
                loss = loss / self.steps
            if self.kind == "deepspeed":
                self.engine.scale(loss).backward()
            xm.mark_step()
""",
    "a host that drives compiled code": """\
import tensorflow as tf

@tf.function(jit_compile=True)
def step(x):
    return x * 2.0

@tf.function
def epoch(iterator):
    tf.print("begin")
    for batch in iterator:
        step(batch)
    tf.print("end")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_silence(name: str) -> None:
    assert check(PROGRAMS[name], target="tpu") == []


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("xm.is_master_ordinal()", True),
        ("device.type == 'xla'", True),
        ("not is_torch_xla_available()", False),
        ("torch.cuda.is_available()", False),
    ],
)
def test_a_branch_for_other_hardware_is_passed_over(test: str, told: bool) -> None:
    text = (
        "import torch\nimport torch_xla.core.xla_model as xm\n\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n"
        f"    xm.mark_step()\n    if {test}:\n        print(loss.item())\n"
    )
    assert ("PTX601" in {found.code for found in check(text, target="tpu")}) is told
