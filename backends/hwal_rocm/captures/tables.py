"""Tables of pairs: `rocm-smi --showtopo`, `--showtopotype` and the like; `amd-smi topology`."""

from __future__ import annotations

import re
from itertools import combinations

from hwal.values import Probe
from hwal_rocm.captures.build import FACTS, KINDS, damaged, device, link, probe

ROCM_SMI, AMD_SMI = "rocm-smi --showtopo", "amd-smi topology"
TITLE = re.compile(r"=+ (Weight|Hops|Link Type|Link accessibility) between two GPUs =+|([A-Z -]+) TABLE:$")
BANNER = re.compile(r"=+ .*(?:GPUs|Bandwidth).* =+|[A-Z -]+ TABLE:")
LABEL = re.compile(r"GPU\d+|[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
AFFINITY = re.compile(r"GPU ?\[?(\d+)\]?\s*: \(Topology\) Numa Affinity: -?\d+$")
NODE = re.compile(r"GPU ?\[?(\d+)\]?\s*: \(Topology\) Numa Node: (-?\d+)$")

Table = tuple[list[str], list[list[str]], list[int]]  # labels, cells, line of each row


def read(lines: list[str], where: str) -> Probe:
    """The GPUs and links by the tables that there are; that of link types must be. Numa nodes are told below them."""
    tables: dict[str, Table] = {}
    tool = AMD_SMI if any(line.strip().endswith("TABLE:") for line in lines) else ROCM_SMI
    before = ""
    for number, line in enumerate(map(str.strip, lines)):
        if found := TITLE.match(line):
            title = (found[1] or found[2]).upper().replace("LINK ACCESSIBILITY", "ACCESS")
            if title in tables:
                raise damaged(f"a second table {line!r}", where, number + 1, tool)
            if title in FACTS.values():
                tables[title] = _table(lines, number, where, tool)
        elif line.endswith("=") and " GPUs" in line:
            raise damaged(f"{line.strip('= ')!r} is no table that the tool prints", where, number + 1, tool)
        elif _names_gpus(line) and not BANNER.fullmatch(before):
            raise damaged("a table of GPUs without its title", where, number + 1, tool)
        elif "(Topology)" in line and not NODE.match(line) and not AFFINITY.match(line):
            raise damaged(f"{line!r} is nothing that the tool prints", where, number + 1, tool)
        before = line or before
    if "LINK TYPE" not in tables:
        raise damaged("no table of link types in it", where, len(lines), tool)
    labels, kinds, at = tables["LINK TYPE"]
    for title, (others, _, rows) in tables.items():
        if others != labels:
            raise damaged(f"the {title.lower()} table is of other GPUs than the link types", where, rows[0], tool)
    places = {int(found[1]) for line in lines if (found := NODE.match(line.strip()))}
    if places and places != set(range(len(labels))):
        raise damaged(f"the NUMA nodes of GPUs {sorted(places)}, of {len(labels)} GPUs", where, len(lines), tool)
    numa = {int(found[1]): int(found[2]) for line in lines if (found := NODE.match(line.strip())) and int(found[2]) >= 0}
    devices = [device(i, label, numa.get(i)) for i, label in enumerate(labels)]
    links = []
    for a, b in combinations(range(len(labels)), 2):
        cell = kinds[a][b]
        if cell not in KINDS:
            raise damaged(f"{cell!r} is no type of link", where, at[a], tool)
        links.append(link(a, b, cell, {title: table[1][a][b] for title, table in tables.items()}))
    return probe(devices, links, tool)


def _names_gpus(line: str) -> bool:
    """Whether a line is the header of a table."""
    labels = line.split()
    return bool(labels) and all(map(LABEL.fullmatch, labels))


def _table(lines: list[str], title: int, where: str, tool: str) -> Table:
    """The square table below a title: a header, a row for each label, as many cells; symmetric; empty lines between them."""
    filled = [number for number in range(title + 1, len(lines)) if lines[number].strip()]
    number = filled[0] if filled else len(lines)
    labels = lines[number].split() if filled else []
    if not labels or not _names_gpus(lines[number]) or len(set(labels)) != len(labels):
        raise damaged("a table's header should name the GPUs", where, number + 1, tool)
    cells: list[list[str]] = []
    below = [*filled[1 : 1 + len(labels)], *[len(lines)] * len(labels)][: len(labels)]
    for i, (label, number) in enumerate(zip(labels, below, strict=True)):
        row = lines[number].split() if number < len(lines) else []
        if len(row) != len(labels) + 1 or row[0] != label:
            what = f"the row of {label} should have {len(labels)} cells, and has {max(len(row) - 1, 0)}"
            raise damaged(what, where, number + 1, tool)
        cells.append(row[1:])
        for j in range(i):
            if cells[i][j] != cells[j][i]:
                what = f"{label} to {labels[j]} is {cells[i][j]}, but {labels[j]} to {label} is {cells[j][i]}"
                raise damaged(what, where, number + 1, tool)
    return labels, cells, [number + 1 for number in below]
