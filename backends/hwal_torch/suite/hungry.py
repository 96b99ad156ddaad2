"""A script whose forwards take memory by the row, under a limit: of its address space where its device has the host's memory,
else the device's own. A tenth of the limit a row: nine rows fit at most.

    hwal train hungry.py ROW BATCH [LATER [EVALUATED]]

ROW: tenths of the limit that a row takes, 0 for none; LATER: from the third step on; EVALUATED: in the evaluation between.
BATCH: rows of the global batch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hwal

LIMIT = 24 << 30  # bytes of address space; nothing is written to what the forwards take of it
MORE = 2 << 30  # bytes beyond what the process has, where it is


class Hungry(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.row = 0
        self.taken: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.taken = []
        self.taken = [torch.empty(self.row, dtype=torch.uint8, device=x.device) for _ in x]
        return self.line(x)


def allow(address_space: int) -> None:
    """At most so many bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def main() -> None:
    row, batch, *later = map(float, sys.argv[1:])
    size = int(batch)
    with hwal.start("torch") as rt:
        with rt.scope():
            model = Hungry()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            rows = torch.randn(6 * size - 1, 4)
        net, optimizer = rt.prepare(model, optimizer)
        limit = rt.memory().total
        if rt.device.type == "cpu":
            limit = LIMIT
            allow(limit)
        elif rt.job.hardware.sources.get("memory_bytes") in ("procfs", "cgroup"):  # the host's
            limit = MORE
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            allow(limit + pages * os.sysconf("SC_PAGE_SIZE"))
        for _ in rt.epochs(1):
            for (x,) in rt.feed(DataLoader(TensorDataset(rows), batch_size=size, shuffle=True)):
                tenths = later[0] if later and rt.steps_done >= 2 else row
                model.row = int(tenths * (limit or 0) / 10)
                rt.backward((net(x) - x.sum(1, keepdim=True)).pow(2).mean())
                if rt.step(optimizer) and rt.steps_done == 2:
                    rt.save(wait=True)
                    for (y,) in rt.feed(DataLoader(TensorDataset(rows), batch_size=size), train=False):
                        model.row = int((later[1] if len(later) > 1 else 0) * (limit or 0) / 10)
                        net(y)


if __name__ == "__main__":
    main()
