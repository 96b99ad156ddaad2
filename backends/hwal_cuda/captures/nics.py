"""The NIC columns of `nvidia-smi topo -m`: which NIC is nearest to which GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")
LEGEND = re.compile(r"\s*(NIC\d+): (\S+)\s*$")


def notes(names: Sequence[str], cells: Sequence[Sequence[str]], lines: Sequence[str]) -> list[str]:
    """One note: each GPU's nearest NICs. `cells`: a row a GPU; where one is short or glued a cell might be another's: none."""
    if not names or any(len(row) != len(names) or any(cell not in NEAREST for cell in row) for row in cells):
        return []
    legend: Mapping[str, str] = {found[1]: found[2] for line in lines if (found := LEGEND.match(line))}
    told = []
    for place, row in enumerate(cells):
        best = min(row, key=NEAREST.index)
        near = [legend.get(name, name) for name, cell in zip(names, row, strict=True) if cell == best]
        told.append(f"GPU {place} {', '.join(near)} ({best})")
    return [f"nearest NICs: {'; '.join(told)}"] if len({*map(tuple, cells)}) > 1 or len(cells) == 1 else []
