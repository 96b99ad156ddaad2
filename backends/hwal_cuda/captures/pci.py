"""`lspci -nn`, and NCCL's topology and graph files."""

from __future__ import annotations

import re

from hwal import pci_tree
from hwal.markup import Element, parse
from hwal.topology import Device
from hwal.values import Probe
from hwal_cuda.captures.build import address, check_numbers, damaged, probe

FUNCTION = re.compile(r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (.+?) \[([0-9a-f]{4})\]: ")
IDS = re.compile(r".*\[([0-9a-f]{4}):([0-9a-f]{4})\]")
IDENTITY = re.compile(r"\[[0-9a-f]{4}:[0-9a-f]{4}\]")
CLASSES = ("0x0302", "0x0300")
NVIDIA, GPUS, BRIDGE = "10de", ("0300", "0302"), "0680"


def read_lspci(lines: list[str], where: str) -> Probe | None:
    """NVIDIA's GPUs by their address; NVSwitches are told as a note. None where there is neither."""
    first = next((line for line in lines if line.strip()), "")
    if not FUNCTION.match(first):
        return None
    devices: list[Device] = []
    at_line: list[int] = []
    switches = 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("\t", " ")):  # of lspci -v
            continue
        found, ids = FUNCTION.match(line), IDS.match(line)
        if found is None or ids is None:
            raise damaged(f"{line.strip()[:60]!r} is no PCI function with its numbers", where, number, "lspci -nn")
        if len(IDENTITY.findall(line)) > 1:
            raise damaged(f"two PCI functions in one line: {line.strip()[:60]!r}", where, number, "lspci -nn")
        if ids[1] == NVIDIA and found[3] in GPUS:
            bus = address(found[1] if found[1].count(":") == 2 else f"0000:{found[1]}")
            name = line[found.end() : ids.start(1) - 1].strip()
            devices.append(Device("cuda", len(devices), name=name, id=bus, pci=bus))
            at_line.append(number)
        switches += ids[1] == NVIDIA and found[3] == BRIDGE
    if not devices:
        return None
    check_numbers(devices, at_line, where, "lspci -nn")
    return probe(devices, "lspci -nn", [f"{switches} NVSwitches, by which all GPUs are linked alike"] if switches else [])


def read_tree(text: str, where: str) -> Probe | None:
    """A topology file of NCCL's, or a graph file; None where it holds AMD's GPUs."""
    if not re.match(r"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(system|graphs)\b", text, re.DOTALL):
        return None
    if re.search(r'\bgcn="|<xgmi\b', text):
        return None
    root = parse(text, where)
    if root.name == "graphs":
        return _graph(root, where)
    found = pci_tree.leaves(root, where, "nvlink", CLASSES)
    links = pci_tree.links(found, "cuda", where, "nvlink")
    return probe(pci_tree.devices(found, "cuda", root), "NCCL's topology file", pci_tree.notes(found, CLASSES), links)


def _graph(root: Element, where: str) -> Probe:
    """The GPUs that NCCL's rings visit: every channel visits the same."""
    channels = [element for element in root.walk() if element.name == "channel"]
    seen: list[str] = []
    for channel in channels:
        visited = [child.attributes.get("dev", "") for child in channel.children if child.name == "gpu"]
        if not visited or not all(map(str.isdigit, visited)) or len(set(visited)) != len(visited):
            raise damaged(
                "a channel that does not visit GPUs by number, each once", where, channel.line, "NCCL_GRAPH_DUMP_FILE"
            )
        seen = seen or visited
        if set(seen) != set(visited):
            raise damaged("a channel that visits other GPUs than the first", where, channel.line, "NCCL_GRAPH_DUMP_FILE")
    if not seen:
        raise damaged("no channel in it", where, root.line, "NCCL_GRAPH_DUMP_FILE")
    order = sorted(map(int, seen))
    devices = [Device("cuda", i, outer=number) for i, number in enumerate(order)]
    return probe(devices, "NCCL's graph file", ["a graph file tells which rings NCCL made, not how the GPUs are linked"])
