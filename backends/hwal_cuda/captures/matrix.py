"""`nvidia-smi topo -m`: the matrix of links.

Row labels are trusted, and exactly as many cells as there are GPU columns are taken: what follows (NICs, affinities) may be
glued together, cut off or empty. The affinity columns are those of the caller's cgroup, and tell no cores of the hardware; the
NUMA column is taken where it names one node. The last column, GPU NUMA ID, is the node that a Grace GPU's own memory makes.
"""

from __future__ import annotations

import re
from itertools import combinations, takewhile

from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_cuda.captures.build import damaged, probe
from hwal_cuda.captures.nics import legend, near

TOOL = "nvidia-smi topo -m"
CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|PSB|NODE|SYS|SOC|N/A")
GPU = re.compile(r"GPU\d+")
AFFINITY = "CPU Affinity"


def read(lines: list[str], where: str) -> Probe | None:
    """The GPUs and the classes of their links; None where no line is such a matrix's header."""
    if any("between two GPUs" in line for line in lines):  # AMD's tables look alike
        return None
    rows = [line.rstrip() for line in lines]
    at = next((i for i, row in enumerate(rows) if _is_header(row)), None)
    first = next((i for i, row in enumerate(rows) if _is_row(row)), None)
    if first is not None and (at is None or first < at):
        raise damaged(f"no header above the row of {rows[first].split()[0]}", where, first + 1, TOOL)
    if at is None:
        return None
    head, _, trailing = rows[at].partition(AFFINITY)
    columns = re.findall(r"GPU\d+|\S+", head)  # GPU columns may be glued; the names of NICs are told apart by spaces
    labels = [name for name in columns if GPU.fullmatch(name)]
    others = columns[len(labels) :]
    if columns[: len(labels)] != labels or len(set(labels)) != len(labels):
        raise damaged(f"the header's GPU columns are {' '.join(labels)}", where, at + 1, TOOL)
    names = [legend(rows).get(name, name) for name in others]
    cells, devices = [], []
    number = at
    for i, label in enumerate(labels):
        number = _next(rows, number)
        row = rows[number] if number < len(rows) else ""
        parts = row.split()
        if not parts or parts[0] != label:
            got = f"begins with {parts[0]!r}" if parts else "is missing"
            raise damaged(f"the row of {label} {got}: {len(labels)} GPU columns need as many rows", where, number + 1, TOOL)
        cells.append(_cells(parts[1:], i, label, len(labels), where, number + 1))
        if len(list(takewhile(CELL.fullmatch, parts[1:]))) > len(labels) + len(others) + parts[1:].count("N/A"):
            raise damaged(f"the row of {label} has more cells than the header has columns", where, number + 1, TOOL)
        numa = _numa(row, len(labels) + len(others), len(head), AFFINITY in rows[at], "NUMA Affinity" in trailing)
        sources = {} if numa is None else {"numa": "text"}
        nics = near(names, parts[1 + len(labels) :])
        devices.append(Device("cuda", i, numa=numa, outer=int(label[3:]), sources=sources, nics=nics))
        for j in range(i):
            if cells[i][j] != cells[j][i]:
                what = f"{label} to {labels[j]} is {cells[i][j]}, but {labels[j]} to {label} is {cells[j][i]}"
                raise damaged(what, where, number + 1, TOOL)
    after = _next(rows, number)
    if after < len(rows) and GPU.fullmatch(rows[after].split()[0]):
        label = rows[after].split()[0]
        what = f"a row of {label}, which has " + ("one already" if label in labels else "no column")
        raise damaged(what, where, after + 1, TOOL)
    links = [
        Link(a, b, "" if cells[a][b] == "N/A" else cells[a][b], source="text", backend="cuda", count=_bundle(cells[a][b]))
        for a, b in combinations(range(len(labels)), 2)
    ]
    return probe(devices, TOOL, (), links)


def _is_header(row: str) -> bool:
    parts = row.split()
    return bool(parts) and parts[0].startswith("GPU0") and not CELL.fullmatch((*parts, "")[1])


def _is_row(row: str) -> bool:
    parts = row.split()
    return len(parts) > 1 and bool(GPU.fullmatch(parts[0])) and bool(CELL.fullmatch(parts[1])) and "X" in parts


def _next(rows: list[str], number: int) -> int:
    """The next line that holds something."""
    number += 1
    while number < len(rows) and not rows[number].strip():
        number += 1
    return number


def _cells(parts: list[str], own: int, label: str, n: int, where: str, line: int) -> list[str]:
    """The first n cells of a row, SOC (as old drivers print it) as SYS."""
    cells = parts[:n]
    if len(cells) < n:
        raise damaged(f"the row of {label} has {len(cells)} cells for {n} GPUs", where, line, TOOL)
    for i, cell in enumerate(cells):
        if not CELL.fullmatch(cell):
            raise damaged(f"{cell!r} in the row of {label} is no kind of link", where, line, TOOL)
        if (cell == "X") != (i == own):
            raise damaged(
                f"the row of {label} has {cell} where GPU{i} stands: a cell is missing or too many", where, line, TOOL
            )
    return ["SYS" if cell == "SOC" else cell for cell in cells]


def _bundle(cell: str) -> int | None:
    return int(cell[2:]) if cell.startswith("NV") else None


def _numa(row: str, columns: int, offset: int, affinity: bool, numa: bool) -> int | None:
    """The NUMA node in a row's trailing cells: by tabs where there are any, else by where the header's columns stand."""
    if not (affinity and numa):
        return None
    if "\t" in row:
        trailing = [cell.strip() for cell in row.strip().split("\t")][1 + columns :]
        cells = [cell for cell in trailing[1:] if cell]
    else:
        found = list(re.finditer(r"\S+", row))[1 + columns :]
        empty = bool(found) and found[0].start() > offset + len(AFFINITY)  # no CPU affinity: the first value is the node
        cells = [match.group() for match in found[0 if empty else 1 :]]
    return int(cells[0]) if cells and cells[0].isdigit() else None
