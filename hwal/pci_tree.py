"""The topology file that NCCL and RCCL write and read (NCCL_TOPO_DUMP_FILE): CPUs, PCI bridges, GPUs, NICs as a tree.

Read for whichever vendor's direct links it holds. Paths that no direct link makes are named by where two branches of the
tree meet: PIX below one bridge, PXB below several, PHB at the CPU, SYS across CPUs (NCCL's own names).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from hwal.errors import RecordError
from hwal.markup import Element
from hwal.topology import Device, Link

NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")  # classes of a PCIe path, the shortest first
BRANCHES = ("cpu", "pci", "nic")  # what no GPU has below it
SWITCH = "0x068000"  # PCI class of an NVSwitch's bridge


@dataclass(frozen=True)
class Leaf:
    """A GPU of the tree: the elements above it, from the CPU down, and its direct links by target address."""

    address: str
    element: Element
    above: tuple[Element, ...]
    direct: Mapping[str, tuple[int, str, int]]


def leaves(root: Element, where: str, direct: str, classes: tuple[str, ...]) -> list[Leaf]:
    """The GPUs, in the file's order; where there is no <gpu> (a template for a VM), PCI functions of one of the `classes`."""
    found: list[Leaf] = []
    tagged = any(element.name == "gpu" for element in root.walk())

    def visit(element: Element, above: tuple[Element, ...]) -> None:
        if element.name == "pci":
            address = element.attributes.get("busid")
            if not address:
                raise _damaged("a <pci> without busid", where, element)
            gpus = [child for child in element.children if child.name == "gpu"]
            if "class" not in element.attributes:
                raise _damaged("a <pci> without class", where, element)
            is_gpu = bool(gpus) or element.attributes["class"][:6] in classes
            if len(gpus) > 1 or (is_gpu and tagged and not gpus):
                raise _damaged(f"{len(gpus)} <gpu> in the <pci> of a GPU", where, element)
            if is_gpu and all(part.name != "cpu" for part in above):
                raise _damaged(f"the GPU at {address} outside any <cpu>", where, element)
            if is_gpu:
                if any(leaf.address == address.lower() for leaf in found):
                    raise _damaged(f"a second GPU at {address}", where, element)
                links = _direct(gpus, where, direct)
                if address.lower() in links:
                    raise _damaged(f"a <{direct}> from {address} to itself", where, element)
                found.append(Leaf(address.lower(), element, above, links))
        if element.name == "cpu" and "numaid" not in element.attributes:
            raise _damaged("a <cpu> without numaid", where, element)
        if element.text:
            raise _damaged(f"{element.text.split()[0]!r} between its elements", where, element)
        in_gpu = element.name == "gpu" or any(child.name == "gpu" for child in element.children)
        for child in element.children:
            inside = in_gpu or (child.name == "cpu" and element.name in BRANCHES)
            if (inside and child.name in BRANCHES) or (child.name == direct and element.name in ("system", *BRANCHES)):
                raise _damaged(f"a <{child.name}> in a <{element.name}>, where none can be", where, child)
            visit(child, (*above, element) if element.name in ("cpu", "pci") else above)

    visit(root, ())
    if not found:
        raise _damaged("no GPU in it", where, root)
    return found


def _direct(gpus: list[Element], where: str, name: str) -> dict[str, tuple[int, str, int]]:
    """Target address -> links, class of the target, line."""
    links: dict[str, tuple[int, str, int]] = {}
    for element in (child for gpu in gpus for child in gpu.children if child.name == name):
        target, count = element.attributes.get("target", "").lower(), element.attributes.get("count", "")
        if not target or not count.isdigit():
            raise _damaged(f"a <{name}> without target and count", where, element)
        if target in links:
            raise _damaged(f"a second <{name}> to {target}", where, element)
        links[target] = (int(count), element.attributes.get("tclass", ""), element.line)
    return links


def devices(found: list[Leaf], backend: str, root: Element) -> tuple[Device, ...]:
    """A Device for each GPU: address, NUMA node, nearest NICs."""
    nics = list(_nics(root, ()))
    return tuple(
        Device(
            backend,
            i,
            id=leaf.address,
            numa=_numa(leaf),
            sources={"numa": "text"},
            pci=leaf.address,
            nics=nearest({name: _path(leaf.above, above) for name, above in nics}),
        )
        for i, leaf in enumerate(found)
    )


def nearest(paths: Mapping[str, str]) -> dict[str, str]:
    """Of NICs and the classes of the paths to them those on the shortest. Raises ValueError for a class that is none."""
    best = min(map(NEAREST.index, paths.values()), default=0)
    return {name: path for name, path in paths.items() if path == NEAREST[best]}


def _nics(element: Element, above: tuple[Element, ...]) -> Iterator[tuple[str, tuple[Element, ...]]]:
    """The name of each NIC's port, and the elements above the NIC's own PCI function."""
    if element.name == "net" and "name" in element.attributes:
        yield element.attributes["name"], above[:-1]
    for child in element.children:
        yield from _nics(child, (*above, element) if element.name in ("cpu", "pci") else above)


def _numa(leaf: Leaf) -> int | None:
    node = leaf.above[0].attributes.get("numaid", "") if leaf.above else ""
    return int(node) if node.isdigit() else None


def links(found: list[Leaf], backend: str, where: str, direct: str) -> tuple[Link, ...]:
    """A Link for each pair. Raises RecordError, naming the line, where two GPUs do not agree on the links between them."""
    result = []
    for (a, one), (b, other) in combinations(enumerate(found), 2):
        path = _path(one.above, other.above)
        count = _count(one, other, where, direct)
        if count:
            name = f"NV{count}" if direct == "nvlink" else direct.upper()
            result.append(Link(a, b, name, source="text", backend=backend, count=count, path=path))
        else:
            result.append(Link(a, b, path, source="text", backend=backend))
    return tuple(result)


def notes(found: list[Leaf], classes: tuple[str, ...]) -> list[str]:
    """What the links tell of GPUs that are not in the file: a job with a mask, or a container, has some only."""
    known = {leaf.address for leaf in found}
    strays = [
        (count, target)
        for leaf in found
        for target, (count, kind, _) in leaf.direct.items()
        if target not in known and kind[:6] in classes
    ]
    names = ", ".join(sorted({target for _, target in strays}))
    return [f"{sum(count for count, _ in strays)} links lead to GPUs that are not in the file: {names}"] if strays else []


def _count(one: Leaf, other: Leaf, where: str, direct: str) -> int:
    """Direct links of a pair: between the two, or of each to the switches they share."""
    there, line = one.direct.get(other.address, (0, "", 0)), 0
    back = other.direct.get(one.address, (0, "", 0))
    if there[0] != back[0]:
        line = there[2] or back[2]
        raise RecordError(
            f"{one.address} has {there[0]} {direct} links to {other.address}, which has {back[0]} back",
            where=f"{where}, line {line}",
            hint="capture it again: the file is cut off or was edited",
        )
    if there[0]:
        return there[0]
    shared = [target for target, (_, kind, _) in one.direct.items() if kind == SWITCH and target in other.direct]
    return min(sum(leaf.direct[target][0] for target in shared) for leaf in (one, other))


def _path(one: tuple[Element, ...], other: tuple[Element, ...]) -> str:
    """The class of the path between two PCI functions, by the elements above each, from the CPU down."""
    common = [a for a, b in zip(one, other, strict=False) if a is b]
    if not common:
        return "SYS"
    if len(common) == 1:
        return "PHB"
    below = (len(one) - len(common), len(other) - len(common))
    return "PIX" if max(below) == 0 else "PXB"


def _damaged(what: str, where: str, element: Element) -> RecordError:
    return RecordError(
        f"not a topology file: {what}",
        where=f"{where}, line {element.line}",
        hint="NCCL_TOPO_DUMP_FILE=topology.xml writes one",
    )
