"""What AMD's tools print, read back as the probe that the machine would have given.

Hops are not read: they are 1 for any path over xGMI. A link's worth is its class, the speed where amd-smi tells one, and the
driver's weight.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hwal import pci_tree
from hwal.errors import RecordError
from hwal.host import RecordedHost, Recording
from hwal.markup import parse
from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_rocm import kfd
from hwal_rocm.present import NODES

ROCM_SMI, AMD_SMI = "rocm-smi --showtopo", "amd-smi topology"
TITLE = re.compile(r"=+ (Weight|Hops|Link Type) between two GPUs =+|([A-Z -]+) TABLE:$")
LABEL = re.compile(r"GPU\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
NODE = re.compile(r"GPU ?\[?(\d+)\]?\s*: \(Topology\) Numa Node: (\d+)$")
LSPCI = re.compile(
    r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) .+? \[(03(?:00|02|80)|1200)\]: (.*?) ?\[1002:[0-9a-f]{4}\]"
)
KINDS = {"XGMI": "XGMI", "PCIE": "PCIE", "N/A": ""}

Table = tuple[list[str], list[list[str]], list[int]]  # labels, cells, line of each row


def read(text: str, where: str) -> Probe | None:
    """The GPUs in `text`; None where no AMD tool prints such a thing. Raises RecordError naming the line that is damaged."""
    if re.search(r"<system\b", text[:2000]) and re.search(r'\bgcn="|<xgmi\b', text):
        return _tree(text, where)
    body = re.sub(r"\A\s*\$ [^\n]*amd-smi[^\n]*\n", lambda found: "\n" * found[0].count("\n"), text)
    start = body.lstrip()[:1]
    if start == "[" and '"gpu"' in body and ('"link' in body or '"weight"' in body):
        return _amd_smi_json(body, where)
    if start == "{" and "properties" in body and "simd_count" in body:
        return _kfd(body, where)
    lines = text.splitlines()
    if any(TITLE.match(line.strip()) for line in lines):
        return _tables(lines, where)
    return _lspci(lines)


def _probe(devices: Sequence[Device], links: Sequence[Link], tool: str, notes: Sequence[str] = ()) -> Probe:
    counts = Counter(device.name or "AMD GPU" for device in devices)
    what = ", ".join(f"{count} × {name}" for name, count in counts.items())
    return Probe("rocm", "ready", f"{what}, as {tool} prints", devices=tuple(devices), links=tuple(links), notes=tuple(notes))


def _damaged(what: str, where: str, line: int, tool: str) -> RecordError:
    hint = f"capture it again with {tool}: the file is cut off or was edited"
    return RecordError(what, where=f"{where}, line {line}", hint=hint)


# tables: rocm-smi --showtopo, --showtopotype; amd-smi topology


def _tables(lines: list[str], where: str) -> Probe:
    tables: dict[str, Table] = {}
    tool = ROCM_SMI
    for number, line in enumerate(lines):
        if found := TITLE.match(line.strip()):
            title = (found[1] or found[2]).upper()
            tool = ROCM_SMI if found[1] else AMD_SMI
            if title in ("WEIGHT", "LINK TYPE", "ACCESS", "NUMA BW"):
                tables[title] = _table(lines, number, where, tool)
    if "LINK TYPE" not in tables:
        raise _damaged("no table of link types in it", where, len(lines), tool)
    labels, kinds, at = tables["LINK TYPE"]
    for title, (others, _, rows) in tables.items():
        if others != labels:
            raise _damaged(f"the {title.lower()} table is of other GPUs than the link types", where, rows[0], tool)
    numa = {int(found[1]): int(found[2]) for line in lines if (found := NODE.match(line.strip()))}
    devices = [_device(i, label, numa.get(i)) for i, label in enumerate(labels)]
    links = []
    for a, b in combinations(range(len(labels)), 2):
        cell = kinds[a][b]
        if cell not in KINDS:
            raise _damaged(f"{cell!r} is no type of link", where, at[a], tool)
        links.append(_link(a, b, cell, {title: table[1][a][b] for title, table in tables.items()}))
    return _probe(devices, links, tool)


def _device(place: int, label: str, numa: int | None) -> Device:
    bus = label if ":" in label else None
    return Device("rocm", place, id=bus, pci=bus, numa=numa, outer=place, sources={} if numa is None else {"numa": "text"})


def _link(a: int, b: int, kind: str, cells: Mapping[str, str]) -> Link:
    """From the cells of a pair in each table. NUMA BW is MB/s, least and most; ACCESS is whether peers may read each other."""
    weight, access = cells.get("WEIGHT", ""), cells.get("ACCESS")
    speed = re.fullmatch(r"\d+-(\d+)", cells.get("NUMA BW", ""))
    return Link(
        a,
        b,
        KINDS[kind],
        bandwidth=int(speed[1]) * 1e6 if speed and int(speed[1]) else None,
        p2p={"ENABLED": True, "DISABLED": False}.get(access or ""),
        source="text",
        backend="rocm",
        distance=int(weight) if weight.isdigit() and int(weight) else None,
    )


def _table(lines: list[str], title: int, where: str, tool: str) -> Table:
    """The square table below a title: a header, a row for each label, as many cells; symmetric."""
    number = title + 1
    while number < len(lines) and not lines[number].strip():
        number += 1
    labels = lines[number].split() if number < len(lines) else []
    if not labels or not all(map(LABEL.fullmatch, labels)):
        raise _damaged("a table's header should name the GPUs", where, number + 1, tool)
    cells: list[list[str]] = []
    for i, label in enumerate(labels):
        row = lines[number + 1 + i].split() if number + 1 + i < len(lines) else []
        if len(row) != len(labels) + 1 or row[0] != label:
            what = f"the row of {label} should have {len(labels)} cells, and has {max(len(row) - 1, 0)}"
            raise _damaged(what, where, number + 2 + i, tool)
        cells.append(row[1:])
        for j in range(i):
            if cells[i][j] != cells[j][i]:
                what = f"{label} to {labels[j]} is {cells[i][j]}, but {labels[j]} to {label} is {cells[j][i]}"
                raise _damaged(what, where, number + 2 + i, tool)
    return labels, cells, [number + 2 + i for i in range(len(labels))]


# amd-smi topology --json


def _amd_smi_json(body: str, where: str) -> Probe:
    """Both layouts: `links` as a list, and before ROCm 6.2 a mapping for each fact."""
    tool = f"{AMD_SMI} --json"
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip().rstrip(",") == "...":
            raise _damaged("part of it was left out (...)", where, number, tool)
    gpus = list(_objects(body, where, tool))
    rows: list[dict[int, dict[str, str]]] = []
    devices = []
    for place, (gpu, begin) in enumerate(gpus):
        if not isinstance(gpu, dict) or gpu.get("gpu") != place:
            raise _damaged(f"GPU {place} is not in its place", where, begin, tool)
        devices.append(_device(place, str(gpu.get("bdf", "")), None))
        rows.append(_row(gpu))
        if set(rows[-1]) != set(range(len(gpus))):
            raise _damaged(f"GPU {place} has links to {sorted(rows[-1])}, of {len(gpus)} GPUs", where, begin, tool)
    links = []
    for a, b in combinations(range(len(gpus)), 2):
        there, back = rows[a][b], rows[b][a]
        if there.get("LINK TYPE") != back.get("LINK TYPE") or there.get("LINK TYPE") not in KINDS:
            what = f"GPU {a} to {b} is {there.get('LINK TYPE')}, GPU {b} to {a} {back.get('LINK TYPE')}"
            raise _damaged(what, where, gpus[a][1], tool)
        links.append(_link(a, b, there["LINK TYPE"], there))
    return _probe(devices, links, tool)


def _objects(body: str, where: str, tool: str) -> Iterator[tuple[Any, int]]:
    """The elements of a JSON list, and the line each begins on."""
    decoder, at = json.JSONDecoder(), body.index("[") + 1
    separator = re.compile(r"[\s,]*")
    while (at := _end(separator.match(body, at), at)) < len(body) and body[at] != "]":
        line = body.count("\n", 0, at) + 1
        try:
            value, at = decoder.raw_decode(body, at)
        except json.JSONDecodeError as error:
            raise _damaged(f"not JSON: {error.msg}", where, error.lineno, tool) from None
        yield value, line
    if at >= len(body):
        raise _damaged("the list does not end", where, body.count("\n") + 1, tool)


def _end(found: re.Match[str] | None, otherwise: int) -> int:
    return found.end() if found else otherwise


FACTS = {  # of the JSON's two layouts -> the name that the text's tables have
    "weight": "WEIGHT",
    "link_type": "LINK TYPE",
    "link_status": "ACCESS",
    "link_accessibility": "ACCESS",
    "bandwidth": "NUMA BW",
    "numa_bandwidth": "NUMA BW",
}


def _row(gpu: Mapping[str, object]) -> dict[int, dict[str, str]]:
    """Other GPU -> fact -> value."""
    found: dict[int, dict[str, str]] = {}
    links = gpu.get("links")
    if isinstance(links, list):
        for link in links:
            if isinstance(link, dict) and isinstance(link.get("gpu"), int):
                found[link["gpu"]] = {FACTS[key]: str(value) for key, value in link.items() if key in FACTS}
        return found
    for key, cells in gpu.items():
        if key in FACTS and isinstance(cells, dict):
            for name, value in cells.items():
                if re.fullmatch(r"gpu_\d+", str(name)):
                    found.setdefault(int(str(name)[4:]), {})[FACTS[key]] = str(value)
    return found


def _line_of(body: str, text: str) -> int:
    at = body.find(text)
    return body.count("\n", 0, max(at, 0)) + 1


# KFD's sysfs, an object of path -> text; RCCL's topology file; lspci


def _kfd(body: str, where: str) -> Probe:
    """`nodes/1/properties` and so on, as read below /sys/class/kfd/kfd/topology."""
    try:
        files = json.loads(body)
    except json.JSONDecodeError as error:
        raise _damaged(f"not JSON: {error.msg}", where, error.lineno, "find and cat") from None
    paths = {re.sub(r"^/?(.*/)?topology/", "", name): str(text) for name, text in files.items()}
    host = RecordedHost(Recording(files={f"{NODES.removesuffix('/nodes')}/{name}": text for name, text in paths.items()}))
    nodes = kfd.nodes(host)
    for node in nodes:
        expected = node.facts.get("io_links_count", 0)
        if not node.facts or (node.is_gpu and len(node.links) < expected):
            line = _line_of(body, f"nodes/{node.number}/")
            what = f"node {node.number} says it has {expected} links, and {len(node.links)} are there"
            raise _damaged(what, where, line, "find and cat below /sys/class/kfd")
    devices, links = kfd.devices(nodes, "text"), kfd.links(nodes, "text")
    if not devices:
        raise _damaged("no node with SIMDs: no GPU", where, 1, "find and cat below /sys/class/kfd")
    chips = {device.part_of for device in devices if device.part_of}
    notes = [f"the {len(devices)} devices are partitions of {len(chips)} GPUs"] if chips else []
    return _probe(devices, links, "KFD's sysfs", notes)


def _tree(text: str, where: str) -> Probe:
    root = parse(text, where)
    found = pci_tree.leaves(root, where, "xgmi", ("0x0380", "0x1200"))
    devices = [replace(device, arch=_gfx(leaf)) for device, leaf in zip(pci_tree.devices(found, "rocm"), found, strict=True)]
    return _probe(devices, pci_tree.links(found, "rocm", where, "xgmi"), "RCCL's topology file")


def _gfx(leaf: pci_tree.Leaf) -> str | None:
    gpu = next((child for child in leaf.element.children if child.name == "gpu"), None)
    name = gpu.attributes.get("gcn") if gpu else None
    return None if name is None else name if name.startswith("gfx") else f"gfx{name}"


def _lspci(lines: list[str]) -> Probe | None:
    devices: list[Device] = []
    for line in lines:
        if found := LSPCI.match(line):
            bus = found[1] if found[1].count(":") == 2 else f"0000:{found[1]}"
            devices.append(Device("rocm", len(devices), name=found[3], id=bus, pci=bus))
    links = [Link(a, b, "", source="text", backend="rocm") for a, b in combinations(range(len(devices)), 2)]
    return _probe(devices, links, "lspci -nn") if devices else None
