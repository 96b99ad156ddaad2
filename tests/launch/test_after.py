"""What a script finds when its run is over."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from .runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="/proc")]
pytest.importorskip("torch")

SCRIPT = """
import pathlib, torch, hwal
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        rt.prepare(model, optimizer)
        for x in rt.feed(torch.utils.data.DataLoader([torch.ones(4)] * 16, batch_size=8)):
            rt.backward(model(x).mean())
            rt.step(optimizer)
    model(torch.ones(1, 4)).mean().backward()
    if rt.rank == 0:
        names = [(task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
        print("the gradient is", model.bias.grad.item(), "and threads of gloo's are", sum("gloo" in name for name in names))
if __name__ == "__main__":
    main()
"""


def test_the_model_goes_on_alone(make: Callable[[str], Run]) -> None:
    """Nothing of the process group is left: a thread of its that outlived the interpreter would abort the process."""
    code, said = make(SCRIPT)("--device", "null:2")
    assert code == 0, said
    assert "the gradient is 1.0 and threads of gloo's are 0" in said, said
