"""`nvidia-smi topo -m`: the matrix of links; `topo -p2p`: whether each pair can read the other's memory.

Row labels are trusted, and exactly as many cells as there are GPU columns are taken: what follows (NICs, affinities) may be
glued together, cut off or empty. The affinity columns are those of the caller's cgroup, and tell no cores of the hardware; the
NUMA column is taken where it names one node. The last column, GPU NUMA ID, is the node that a Grace GPU's own memory makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations, takewhile

from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_cuda.captures.build import damaged, probe
from hwal_cuda.captures.nics import check, legend, near

TOOL = "nvidia-smi topo -m"
CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|PSB|NODE|SYS|SOC|N/A")
# Ok; not supported by chipset, GPU, topology; disabled by the registry. NS and U, not supported and unknown, tell nothing
PEER = {"X": None, "OK": True, "CNS": False, "GNS": False, "TNS": False, "DR": False, "NS": None, "U": None}
GPU = re.compile(r"GPU\d+")
AFFINITY, OWN_NODE = "CPU Affinity", "GPU NUMA ID"


@dataclass(frozen=True)
class Square:
    """A matrix: where its header stands, the labels of its GPUs, its other columns, its cells, the line of each row."""

    at: int
    labels: list[str]
    others: list[str]
    cells: list[list[str]]
    lines: list[int]

    @property
    def is_of_peers(self) -> bool:
        """Whether it tells who reads whose memory; a single GPU's matrix does not say."""
        return any(cell in PEER for row in self.cells for cell in row if cell != "X")


def read(lines: list[str], where: str) -> Probe | None:
    """The GPUs and the classes of their links; None where no line is such a matrix's header."""
    if any("between two GPUs" in line for line in lines):  # AMD's tables look alike
        return None
    rows = [line.rstrip() for line in lines]
    headers = [i for i, row in enumerate(rows) if _is_header(row)]
    first = next((i for i, row in enumerate(rows) if _is_row(row)), None)
    if first is not None and (not headers or first < headers[0]):
        raise damaged(f"no header above the row of {rows[first].split()[0]}", where, first + 1, TOOL)
    if not headers:
        return None
    squares = [_square(rows, at, where) for at in headers]
    for square in squares[1:]:
        if square.labels != squares[0].labels:
            raise damaged("a second matrix, of other GPUs than the first", where, square.at + 1, TOOL)
    wired = [square for square in squares if not square.is_of_peers]
    for square in wired[1:]:
        if square.cells != wired[0].cells:
            raise damaged("a second matrix that is not the first's", where, square.at + 1, TOOL)
    peers = next((square for square in squares if square.is_of_peers), None)
    devices = _devices(rows, wired[0] if wired else squares[0])
    links = []
    for a, b in combinations(range(len(devices)), 2):
        cell = wired[0].cells[a][b] if wired else "N/A"
        p2p = PEER[peers.cells[a][b]] if peers else None
        name = "" if cell == "N/A" else cell
        links.append(Link(a, b, name, p2p=p2p, source="text", backend="cuda", count=_bundle(cell)))
    return probe(devices, TOOL if wired else "nvidia-smi topo -p2p", (), links)


def _square(rows: list[str], at: int, where: str) -> Square:
    """The matrix below the header in row `at`. Raises RecordError where it is not square and symmetric."""
    columns = re.findall(r"GPU\d+|\S+", rows[at].partition(AFFINITY)[0])  # GPU columns may be glued; NICs stand apart
    labels = [name for name in columns if GPU.fullmatch(name)]
    others = columns[len(labels) :]
    if columns[: len(labels)] != labels or len(set(labels)) != len(labels):
        raise damaged(f"the header's GPU columns are {' '.join(labels)}", where, at + 1, TOOL)
    cells: list[list[str]] = []
    lines: list[int] = []
    number = at
    for i, label in enumerate(labels):
        number = _next(rows, number)
        parts = rows[number].split() if number < len(rows) else []
        if not parts or parts[0] != label:
            got = f"begins with {parts[0]!r}" if parts else "is missing"
            raise damaged(f"the row of {label} {got}: {len(labels)} GPU columns need as many rows", where, number + 1, TOOL)
        cells.append(_cells(parts[1:], i, label, len(labels), where, number + 1))
        lines.append(number)
        if len(list(takewhile(CELL.fullmatch, parts[1:]))) > len(labels) + len(others) + parts[1:].count("N/A"):
            raise damaged(f"the row of {label} has more cells than the header has columns", where, number + 1, TOOL)
        for j in range(i):
            if cells[i][j] != cells[j][i]:
                what = f"{label} to {labels[j]} is {cells[i][j]}, but {labels[j]} to {label} is {cells[j][i]}"
                raise damaged(what, where, number + 1, TOOL)
    after = _next(rows, number)
    if after < len(rows) and GPU.fullmatch(rows[after].split()[0]) and not _is_header(rows[after]):
        label = rows[after].split()[0]
        what = f"a row of {label}, which has " + ("one already" if label in labels else "no column")
        raise damaged(what, where, after + 1, TOOL)
    beside = [rows[line].split()[1 + len(labels) :] for line in lines]
    if wrong := check(others, beside, rows[: _end(rows, number)], number + 1):
        raise damaged(wrong[1], where, wrong[0] + 1, TOOL)
    return Square(at, labels, others, cells, lines)


def _end(rows: list[str], after: int) -> int:
    """Where the next matrix begins, or the text ends."""
    return next((number for number in range(after + 1, len(rows)) if _is_header(rows[number])), len(rows))


def _devices(rows: list[str], square: Square) -> list[Device]:
    """The GPUs of a matrix, with what stands beside their cells."""
    head, _, trailing = rows[square.at].partition(AFFINITY)
    known = legend(rows)
    names = [known.get(name, name) for name in square.others]
    first = 1 + len(square.labels)
    devices = []
    for i, (label, line) in enumerate(zip(square.labels, square.lines, strict=True)):
        numa = None
        if "NUMA Affinity" in trailing:
            numa = _numa(rows[line], first + len(names), len(head), OWN_NODE in trailing)
        sources = {} if numa is None else {"numa": "text"}
        nics = near(names, rows[line].split()[first:])
        devices.append(Device("cuda", i, numa=numa, outer=int(label[3:]), sources=sources, nics=nics))
    return devices


def _is_header(row: str) -> bool:
    parts = row.split()
    return bool(parts) and parts[0].startswith("GPU0") and not _is_cell((*parts, "")[1])


def _is_row(row: str) -> bool:
    parts = row.split()
    return len(parts) > 1 and bool(GPU.fullmatch(parts[0])) and "X" in parts and _is_cell(parts[1])


def _is_cell(text: str) -> bool:
    return text in PEER or bool(CELL.fullmatch(text))


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
    peers = any(cell in PEER for cell in cells if cell != "X")
    for i, cell in enumerate(cells):
        if not CELL.fullmatch(cell) if not peers else cell not in PEER:
            raise damaged(f"{cell!r} in the row of {label} is no kind of link", where, line, TOOL)
        if (cell == "X") != (i == own):
            raise damaged(
                f"the row of {label} has {cell} where GPU{i} stands: a cell is missing or too many", where, line, TOOL
            )
    return ["SYS" if cell == "SOC" else cell for cell in cells]


def _bundle(cell: str) -> int | None:
    return int(cell[2:]) if cell.startswith("NV") else None


def _numa(row: str, columns: int, offset: int, own: bool) -> int | None:
    """The NUMA node after a row's first `columns` cells and its CPU affinity.

    By tabs where there are any, else by where the header's columns stand. Without the GPU's own node (`own`), which drivers
    tell since 2023, an empty cell may stand before the NUMA node; with it one stands after it. None where a cell is glued to
    the next, for then it is not known which is whose.
    """
    if "\t" in row:
        after = [cell.strip() for cell in row.strip().split("\t")][columns + 1 :]
        cells = (after[:1] if len(after) == 3 else []) if own else [cell for cell in after if cell]
    else:
        found = list(re.finditer(r"\S+", row))
        if not all(CELL.fullmatch(match.group()) for match in found[1:columns]):
            return None
        found = found[columns:]
        empty = bool(found) and found[0].start() > offset + len(AFFINITY)  # no CPU affinity: the first value is the node
        cells = [match.group() for match in found[0 if empty else 1 :]]
        if own and len(cells) < 2:
            return None
    return int(cells[0]) if cells and cells[0].isdigit() else None
