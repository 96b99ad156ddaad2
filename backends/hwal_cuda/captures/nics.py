"""The NIC columns of `nvidia-smi topo -m`: which NICs are nearest to which GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hwal.pci_tree import nearest

LEGEND = re.compile(r"\s*(NIC\d+): (\S+)\s*$")
GLUED = re.compile(r"(?:PIX|PXB|PHB|NODE|SYS|SOC)+")
CLASS = re.compile(r"PIX|PXB|PHB|NODE|SYS|SOC")


def legend(lines: Sequence[str]) -> dict[str, str]:
    """`NIC0: mlx5_0` below the matrix: the names by which the system knows them."""
    return {found[1]: found[2] for line in lines if (found := LEGEND.match(line))}


def check(names: Sequence[str], cells: Sequence[Sequence[str]], rows: Sequence[str], first: int) -> tuple[int, str] | None:
    """Where the rows of NICs do not say what those of the GPUs say, and what is wrong; None where they agree.

    `names` of the NICs and `cells` after the GPUs' own in each GPU's row. Of `rows`, those from `first` on are looked at.
    A NIC that has no row, and a GPU whose row does not tell of each NIC, have nothing to compare.
    """
    seen = set()
    gpus = len(cells)
    for number, row in enumerate(rows[first:], first):
        label, *rest = row.split() or [""]
        if label not in names:
            if "X" in rest and len(_classes(rest, gpus + 1)) > gpus:
                return number, f"a row of {label}, which has no column"
            continue
        told = _classes(rest, gpus + len(names))
        own = gpus + names.index(label)
        if label in seen or len(told) < gpus + len(names) or [i for i, cell in enumerate(told) if cell == "X"] != [own]:
            return number, f"the row of {label} is there twice, or has a cell too few or too many"
        seen.add(label)
        for i, other in enumerate(cells):
            there = _classes(other, len(names))
            if len(there) == len(names) and there[own - gpus] != told[i]:
                return number, f"{label} to GPU{i} is {told[i]}, but GPU{i} to {label} is {there[own - gpus]}"
    return None


def _classes(cells: Sequence[str], most: int) -> list[str]:
    """Up to so many classes, of cells that may be glued; the first cell that is none ends them."""
    told: list[str] = []
    for cell in cells:
        if len(told) >= most or not (cell == "X" or GLUED.fullmatch(cell)):
            break
        told += ["X"] if cell == "X" else ["SYS" if name == "SOC" else name for name in CLASS.findall(cell)]
    return told


def near(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """The nearest of `names`, and the class of the path there, by what follows the GPUs' cells in a row.

    Cells may be glued ("PIXNODE"); where they are not one for each NIC even so, one might be another's: none is told.
    """
    told = _classes(cells, len(names))
    if len(told) != len(names) or "X" in told:
        return {}
    return nearest(dict(zip(names, told, strict=True)))
