"""KFD's sysfs as an object of path and text, the topology file of RCCL, and `lspci -nn`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from hwal import pci_tree
from hwal.host import RecordedHost, Recording
from hwal.markup import parse
from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_rocm import kfd
from hwal_rocm.captures.build import damaged, probe
from hwal_rocm.present import NODES

TOOL = "find and cat below /sys/class/kfd"
CLASSES = ("0x0380", "0x1200")  # of PCI functions that are GPUs
PROPERTY = re.compile(r"\w+ [-\d,]+|\s*")
LSPCI = re.compile(
    r"((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) .+? \[(03(?:00|02|80)|1200)\]: (.*?) ?\[1002:[0-9a-f]{4}\]"
)


def read_sysfs(body: str, where: str) -> Probe:
    """`nodes/1/properties` and so on, as read below /sys/class/kfd/kfd/topology."""
    try:
        files = json.loads(body)
    except json.JSONDecodeError as error:
        raise damaged(f"not JSON: {error.msg}", where, error.lineno, TOOL) from None
    paths = {re.sub(r"^/?(.*/)?topology/", "", name): str(text) for name, text in files.items()}
    for name, text in paths.items():
        if name.endswith("/properties"):
            strange = next((line for line in text.splitlines() if not PROPERTY.fullmatch(line)), None)
            if strange is not None:
                raise damaged(f"{strange[:60]!r} in {name}", where, _line_of(body, name), TOOL)
    host = RecordedHost(Recording(files={f"{NODES.removesuffix('/nodes')}/{name}": text for name, text in paths.items()}))
    nodes = kfd.nodes(host)
    gpus = {node.number: node for node in nodes if node.is_gpu}
    for place, node in enumerate(nodes):
        if node.number != place:
            raise damaged(f"a node {node.number}, but no node {place}", where, _line_of(body, f"nodes/{node.number}/"), TOOL)
        if what := _wrong(node, gpus, len(nodes)):
            raise damaged(f"node {node.number} {what}", where, _line_of(body, f"nodes/{node.number}/"), TOOL)
    if not gpus:
        raise damaged("no node with SIMDs: no GPU", where, 1, TOOL)
    devices = kfd.devices(nodes, "text")
    chips = {device.part_of for device in devices if device.part_of}
    notes = [f"the {len(devices)} devices are partitions of {len(chips)} GPUs"] if chips else []
    return probe(devices, kfd.links(nodes, "text"), "KFD's sysfs", notes)


def _wrong(node: kfd.Node, gpus: Mapping[int, kfd.Node], count: int) -> str | None:
    """In what a node does not agree with itself or with the others, of which there are `count`."""
    if not node.facts:
        return "has no properties"
    if node.lacks:
        return f"has properties without {node.lacks}"
    if beyond := sorted(to for to in {**node.links, **node.paths} if to >= count):
        return f"has a link to node {beyond[0]}, which the file lacks"
    if node.number not in gpus:
        return None
    links, paths = node.facts.get("io_links_count", 0), node.facts.get("p2p_links_count", 0)
    if len(node.links) < links:
        return f"says it has {links} links, and {len(node.links)} are there"
    if node.paths and len(node.paths) < paths:  # where there are none the kernel only counts them
        return f"says it has {paths} paths over PCIe, and {len(node.paths)} are there"
    for name, mine, others in (
        ("link", node.links, {number: gpu.links for number, gpu in gpus.items()}),
        ("path", node.paths, {number: gpu.paths for number, gpu in gpus.items() if gpu.paths}),
    ):
        for to, edge in mine.items():
            back = others[to].get(node.number) if to in others else edge
            if back is None or back.kind != edge.kind:
                return f"has a {name} to node {to} which that does not have back"
    return None


def _line_of(body: str, text: str) -> int:
    """Where `text` first stands."""
    at = body.find(text)
    return body.count("\n", 0, max(at, 0)) + 1


def read_tree(text: str, where: str) -> Probe:
    """The topology file that RCCL writes."""
    root = parse(text, where)
    found = pci_tree.leaves(root, where, "xgmi", CLASSES)
    devices = [
        replace(device, arch=_gfx(leaf)) for device, leaf in zip(pci_tree.devices(found, "rocm", root), found, strict=True)
    ]
    links = pci_tree.links(found, "rocm", where, "xgmi")
    return probe(devices, links, "RCCL's topology file", pci_tree.notes(found, CLASSES))


def _gfx(leaf: pci_tree.Leaf) -> str | None:
    gpu = next((child for child in leaf.element.children if child.name == "gpu"), None)
    name = gpu.attributes.get("gcn") if gpu else None
    return None if name is None else name if name.startswith("gfx") else f"gfx{name}"


def read_lspci(lines: list[str], where: str) -> Probe | None:
    """AMD's GPUs by their address; None where there is none."""
    devices: list[Device] = []
    for number, line in enumerate(lines, 1):
        if found := LSPCI.match(line):
            bus = found[1] if found[1].count(":") == 2 else f"0000:{found[1]}"
            if any(device.pci == bus for device in devices):
                raise damaged(f"a GPU at {bus} for the second time", where, number, "lspci -nn")
            devices.append(Device("rocm", len(devices), name=found[3], id=bus, pci=bus))
    links = [Link(a, b, "", source="text", backend="rocm") for a, b in combinations(range(len(devices)), 2)]
    return probe(devices, links, "lspci -nn") if devices else None
