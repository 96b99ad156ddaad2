"""`amd-smi topology --json`, in both layouts: `links` as a list, and before ROCm 6.2 a mapping for each fact."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from hwal.topology import Device
from hwal.values import Probe
from hwal_rocm.captures.build import FACTS, KINDS, damaged, device, link, probe

ADDRESS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
TOOL = "amd-smi topology --json"


def read(body: str, where: str) -> Probe:
    """The GPUs of the list, each with its links to all."""
    for number, line in enumerate(body.splitlines(), 1):
        if line.strip().rstrip(",") == "...":
            raise damaged("part of it was left out (...)", where, number, TOOL)
    gpus = list(_objects(re.sub(r",(?=\s*[}\]])", " ", body), where))  # trailing commas stand in AMD's own samples
    rows: list[dict[int, dict[str, str]]] = []
    devices: list[Device] = []
    for place, (gpu, begin) in enumerate(gpus):
        if not isinstance(gpu, dict) or gpu.get("gpu") != place:
            raise damaged(f"GPU {place} is not in its place", where, begin, TOOL)
        address = str(gpu.get("bdf", ""))
        if not ADDRESS.fullmatch(address) and ("bdf" in gpu or isinstance(gpu.get("links"), list)):
            raise damaged(f"GPU {place} at {address!r}, which is no PCI address", where, begin, TOOL)
        if address and any(other.pci == address for other in devices):
            raise damaged(f"a second GPU at {address}", where, begin, TOOL)
        devices.append(device(place, address, None))
        rows.append(_row(gpu))
        if set(rows[-1]) != set(range(len(gpus))):
            what = f"GPU {place} should have one link to each of {len(gpus)} GPUs, and has {sorted(rows[-1]) or 'others'}"
            raise damaged(what, where, begin, TOOL)
    links = []
    for place, (gpu, begin) in enumerate(gpus):
        for row in gpu["links"] if isinstance(gpu.get("links"), list) else ():
            if row.get("bdf") != devices[row["gpu"]].pci:
                what = f"GPU {place} has GPU {row['gpu']} at {row.get('bdf')}, which is at {devices[row['gpu']].pci}"
                raise damaged(what, where, begin, TOOL)
    for a, b in combinations(range(len(gpus)), 2):
        there, back = rows[a][b], rows[b][a]
        for fact in sorted(set(there) | set(back)):
            if there.get(fact) != back.get(fact):
                what = f"{fact.lower()}: GPU {a} to {b} is {there.get(fact)}, GPU {b} to {a} {back.get(fact)}"
                raise damaged(what, where, gpus[a][1], TOOL)
        if there.get("LINK TYPE") not in KINDS:
            raise damaged(f"GPU {a} to {b} is {there.get('LINK TYPE')}, which is no type of link", where, gpus[a][1], TOOL)
        links.append(link(a, b, there["LINK TYPE"], there))
    return probe(devices, links, TOOL)


def _objects(body: str, where: str) -> Iterator[tuple[Any, int]]:
    """The elements of a JSON list, and the line each begins on."""
    decoder, at = json.JSONDecoder(), body.index("[") + 1
    separator = re.compile(r"[\s,]*")
    while (at := _end(separator.match(body, at), at)) < len(body) and body[at] != "]":
        line = body.count("\n", 0, at) + 1
        try:
            value, at = decoder.raw_decode(body, at)
        except json.JSONDecodeError as error:
            raise damaged(f"not JSON: {error.msg}", where, error.lineno, TOOL) from None
        yield value, line
    if at >= len(body):
        raise damaged("the list does not end", where, body.count("\n") + 1, TOOL)


def _end(found: re.Match[str] | None, otherwise: int) -> int:
    return found.end() if found else otherwise


def _row(gpu: Mapping[str, object]) -> dict[int, dict[str, str]]:
    """Other GPU -> fact -> value."""
    found: dict[int, dict[str, str]] = {}
    links = gpu.get("links")
    if isinstance(links, list):
        for row in links:
            if isinstance(row, dict) and isinstance(row.get("gpu"), int) and row["gpu"] not in found:
                found[row["gpu"]] = {FACTS[key]: str(value) for key, value in row.items() if key in FACTS}
            else:
                return {}
        return found
    for key, cells in gpu.items():
        if key in FACTS and isinstance(cells, dict):
            for name, value in cells.items():
                if re.fullmatch(r"gpu_\d+", str(name)):
                    found.setdefault(int(str(name)[4:]), {})[FACTS[key]] = str(value)
    return found
