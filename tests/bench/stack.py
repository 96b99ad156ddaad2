"""A model of plain blocks for the benches of memory and checkpoints, and what the kernel says of a process's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from torch import Tensor, nn

MIB = 2**20


class Block(nn.Module):
    """8 width² parameters, and some."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def status(*names: str) -> list[int]:
    """Bytes of these lines of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return [int(lines[name].split()[0]) * 1024 for name in names]


def forget_the_peak() -> None:
    """VmHWM begins anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


class Peak:
    bytes = 0


@contextmanager
def sampled_peak() -> Iterator[Peak]:
    """The most anonymous memory (RssAnon) while the block runs, looked at every millisecond from a thread."""
    peak, ended = Peak(), Event()

    def look() -> None:
        while not ended.wait(0.001):
            peak.bytes = max(peak.bytes, *status("RssAnon"))

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak.bytes = max(peak.bytes, *status("RssAnon"))
