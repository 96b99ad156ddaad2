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


def near(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """The nearest of `names`, and the class of the path there, by what follows the GPUs' cells in a row.

    Cells may be glued ("PIXNODE"); where they are not one for each NIC even so, one might be another's: none is told.
    """
    told: list[str] = []
    for cell in cells:
        if len(told) >= len(names) or not GLUED.fullmatch(cell):
            break
        told += CLASS.findall(cell)
    if len(told) != len(names):
        return {}
    return nearest({name: "SYS" if cell == "SOC" else cell for name, cell in zip(names, told, strict=True)})
