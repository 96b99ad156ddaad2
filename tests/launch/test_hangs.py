"""What `hwal train` says of a run that is stuck, or has lost a rank; every message as printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from .runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="/proc")]
torch = pytest.importorskip("torch")

SCRIPT = """
import os, sys, time, torch, hwal
def preprocess():
    time.sleep(1000)
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rt.prepare(model, optimizer)
        for x in rt.feed(torch.utils.data.DataLoader([torch.ones(4)] * 64, batch_size=8)):
            if rt.steps_done == 2:
                rt.save(wait=True)
            if rt.steps_done == 3 and rt.rank == rt.world_size - 1:
                {body}
            rt.backward(model(x).mean())
            rt.step(optimizer)
if __name__ == "__main__":
    main()
"""
GO_ON = "hwal: the last finished checkpoint is whole: go on with --resume run\n"
TRY = "  try:   --hang-timeout S waits S seconds, --hang-timeout off for ever\n"

VERDICTS = [
    (
        "preprocess()",
        "hwal: error: rank 1 has been stuck for N s in step 4: train.py:4, in preprocess\n"
        "  why:   rank 0 has waited N s for it in rt.backward\n" + TRY + GO_ON,
    ),
    (
        "time.sleep(1); os._exit(0)",  # it has told of its last step
        "hwal: error: rank 1 is gone after step 3: its process N ended\n" + GO_ON,
    ),
    (
        "sys.exit()",
        "hwal: error: rank 1 ended after step 3, while the others wait for it\n"
        "  why:   every rank must do the same number of steps, and come to the same calls\n" + GO_ON,
    ),
]


@pytest.mark.parametrize(("body", "text"), VERDICTS)
def test_the_verdict_as_printed(make: Callable[[str], Run], body: str, text: str) -> None:
    code, said = make(SCRIPT.format(body=body))("--device", "null:2", "--hang-timeout", "2")
    assert (code, plain(said[said.index("hwal: error: ") :])) == (1, text)


def plain(told: str) -> str:
    """Without seconds, the number of a process, and what depends on who looked at it first."""
    told = re.sub(r"\b\d+ s\b", "N s", told)
    told = re.sub(
        r"process \d+ (was killed, crashed or called os._exit\(\)|ended with exit code 0 before .*)", "process N ended", told
    )
    return re.sub(r"  why:   last seen at .*\n", "", told)


def test_one_process_too(make: Callable[[str], Run]) -> None:
    code, said = make(SCRIPT.format(body="preprocess()"))("--device", "null:1", "--hang-timeout", "2")
    assert code == 1
    told = said[said.index("hwal: error: ") :]
    assert told.startswith("hwal: error: the run has been stuck for 2 s in step 4: train.py:4, in preprocess\n"), told
    assert "--resume run goes on from step-00000002" in told
