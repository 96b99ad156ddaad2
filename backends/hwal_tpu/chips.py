"""The chips: generations by PCI id, what each has, and which are in this machine.

Figures: the chip tables of Google's Cloud TPU documentation ("TPU v5e" …) and of "How to Scale Your Model" (bandwidths, one
way, of one ICI link). PCI ids and devices a chip: Google's tpu-info, `tpu_info/device.py`, and JAX's `hardware_utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hwal.host import Host
from hwal.topology import Device
from hwal_tpu.present import PCI, VENDOR

GIB = 1 << 30
NODE = "TPU Node"  # the name of a device that is another machine's; its id is where, or how Google's Cloud calls it


class Generation(NamedTuple):
    """One generation.

    Attributes:
        name: as Google's documentation calls it, less "TPU ".
        devices: XLA devices a chip: its TensorCores, where they do not act as one.
        cores: TensorCores a chip.
        counted: what the number in the accelerator's type counts: "cores" (v4-8 is four chips) or "chips" (v5e-8 is eight).
        hbm: bytes a chip. tflops: bf16, dense, a chip. link: bytes/s of one ICI link, one way.
        axes: of the torus that the links form.
        xla: whether torch_xla 2.8 and 2.9 know it.
    """

    name: str
    devices: int
    cores: int
    counted: str
    hbm: int
    tflops: float
    link: float | None
    axes: int
    xla: bool = True


V2 = Generation("v2", 2, 2, "cores", 16 * GIB, 45, None, 2)
V3 = Generation("v3", 2, 2, "cores", 32 * GIB, 123, 100e9, 2)
V4 = Generation("v4", 1, 2, "cores", 32 * GIB, 275, 45e9, 3)
V5E = Generation("v5e", 1, 1, "chips", 16 * GIB, 197, 45e9, 2)
V5P = Generation("v5p", 1, 2, "cores", 95 * GIB, 459, 90e9, 3)
V6E = Generation("v6e", 1, 1, "chips", 32 * GIB, 918, 90e9, 2)
V7X = Generation("7x", 2, 2, "cores", 192 * GIB, 2307, None, 3, xla=False)

BY_ID: Mapping[str, Generation] = {"0x005e": V4, "0x0062": V5P, "0x0063": V5E, "0x006f": V6E, "0x0076": V7X}
FIRST = "0x0027"  # v2 and v3, which only the subsystem's id tells apart
FIRST_BY_SUBSYSTEM: Mapping[str, Generation] = {"0x004e": V2, "0x004f": V3}
UNNAMED = "0x0056"  # a chip that was never given a public name
BY_TYPE: Mapping[str, Generation] = {
    "v2": V2, "v3": V3, "v4": V4, "v5litepod": V5E, "v5lite": V5E, "v5e": V5E, "v5p": V5P, "v5": V5P, "v6e": V6E, "tpu7x": V7X,
}  # fmt: skip
"""The word before the number in an accelerator's type (`v5litepod-8`)."""

BOUNDS: Mapping[int, tuple[int, int, int]] = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""Chips of one host -> how they lie on the torus. Google's documentation of the machine types: v5e-8 is 2×4."""


class Chip(NamedTuple):
    """One chip. `number` is libtpu's. None: `node`, its file in /dev, is not there; `generation`, its id is not known."""

    number: int
    address: str | None
    generation: Generation | None
    numa: int | None
    node: str | None


def find(host: Host) -> tuple[Chip, ...]:
    """The chips on PCI, in the order in which libtpu numbers them (TPU_VISIBLE_CHIPS)."""
    found: dict[str, tuple[int, str]] = {}  # slot -> place in the order, first function's address
    for address in host.names(PCI):
        if _id(host, address, "vendor") == VENDOR and _is_tpu(_id(host, address, "device")):
            slot = address.rpartition(".")[0] or address  # a TPU7x has a function for each of its halves
            found.setdefault(slot, (_group(host, address), address))
    nodes = _accel_nodes(host) if found else ()
    ordered = sorted(found.values())
    return tuple(
        Chip(
            index,
            address,
            _generation(host, address),
            _numa(host, address),
            _node(host, index, group, nodes),
        )
        for index, (group, address) in enumerate(ordered)
    )


def is_block(numbers: Sequence[int], of: int) -> bool:
    """Whether these of a host's chips, by their numbers, are what one process can have: all, one, 2 or 4 in a block."""
    taken = sorted(set(numbers))
    in_row = taken == list(range(taken[0], taken[0] + len(taken)))
    return len(taken) == of or (in_row and taken[0] % len(taken) == 0 and len(taken) in BOUNDS)


def kind_of(text: str | None) -> tuple[Generation, int] | None:
    """`v5litepod-8` -> the generation and the number of chips of the whole slice; None where it is no accelerator's type."""
    match = re.fullmatch("([a-z0-9]{2,12})-([0-9]{1,6})", (text or "").strip().lower())
    generation = BY_TYPE.get(match[1]) if match else None
    if match is None or generation is None:
        return None
    number = int(match[2])
    chips = max(1, number // generation.cores) if generation.counted == "cores" else number
    return (generation, chips) if number else None


def type_of(generation: Generation, chips: int) -> str:
    """`v5e-8`: as people call a slice of so many chips."""
    word = f"tpu{generation.name}" if generation is V7X else generation.name
    return f"{word}-{chips * (generation.cores if generation.counted == 'cores' else 1)}"


def _id(host: Host, address: str, file: str) -> str:
    return (host.read(f"{PCI}/{address}/{file}") or "").strip()


def _is_tpu(device: str) -> bool:
    return device in BY_ID or device in (FIRST, UNNAMED)


def _generation(host: Host, address: str) -> Generation | None:
    device = _id(host, address, "device")
    return FIRST_BY_SUBSYSTEM.get(_id(host, address, "subsystem_device")) if device == FIRST else BY_ID.get(device)


def _numa(host: Host, address: str) -> int | None:
    text = _id(host, address, "numa_node")
    return int(text) if re.fullmatch("[0-9]{1,6}", text) else None  # -1 where firmware does not tell


def _group(host: Host, address: str) -> int:
    """The number of a device's IOMMU group, by which /dev/vfio names it; -1 where it has none."""
    name = (host.link(f"{PCI}/{address}/iommu_group") or "").rpartition("/")[2]
    return int(name) if re.fullmatch("[0-9]{1,6}", name) else -1


def _accel_nodes(host: Host) -> tuple[str, ...]:
    return tuple(name for name in host.names("/dev") if re.fullmatch("accel[0-9]{1,3}", name))


def _node(host: Host, index: int, group: int, accel: tuple[str, ...]) -> str | None:
    """/dev/accel3 with the driver that v2 to v4 have; /dev/vfio/3 with the later ones'."""
    path = f"/dev/accel{index}" if accel else f"/dev/vfio/{group}"
    return path if host.may_open(path) is not None else None


def is_node(device: Device) -> bool:
    """Whether a device is a TPU Node: all chips of another machine, which TensorFlow reaches by gRPC."""
    return device.name == NODE
