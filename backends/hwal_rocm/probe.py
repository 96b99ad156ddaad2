"""Host -> Probe: AMD's GPUs, from KFD's topology in sysfs, as the HIP of this process will enumerate them.

No library is loaded: what the driver knows stands in files. Where KFD says only PCIe, the path is named by the PCI tree.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from hwal import pci
from hwal.host import Host
from hwal.topology import Device, Link, straggler
from hwal.values import Probe
from hwal_gpu.builds import unfit
from hwal_gpu.speeds import peak
from hwal_rocm import kfd, present
from hwal_rocm.present import ABSENT
from hwal_rocm.visible import visible

NODE = "/dev/kfd"
GROUPS = "sudo usermod -aG render,video $USER, then log in again"
# What a generation has matrix cores for (AMD Instinct instruction set manuals): bf16 from gfx90a on; gfx908 has it at half rate
BF16 = ("gfx90a", "gfx94", "gfx95", "gfx110", "gfx115", "gfx12")
FP16 = ("gfx906", "gfx908", *BF16)


def probe(host: Host) -> Probe:
    """The GPUs that KFD has; blocked where something stands between them and this process."""
    nodes = kfd.nodes(host)
    devices = kfd.devices(nodes, "sysfs")
    for node in nodes:
        if node.lacks:
            reason = f"KFD's node {node.number} cannot be told for a GPU or a CPU: its properties lack {node.lacks}"
            return _blocked(reason, f"cat {present.NODES}/{node.number}/properties; dmesg | grep -i kfd; is the driver whole?")
    if not devices:
        return _without(host, len([node for node in nodes if not node.facts]))
    blocked = _nodes(host)
    if blocked is not None:
        return blocked
    left, notes = visible(devices, host.env)
    if not left:
        return _blocked(notes[0] if notes else "the masks leave no GPU", "unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES")
    links = {(link.a, link.b): link for link in kfd.links(nodes, "sysfs")}
    shown = tuple(_device(host, device, place) for place, device in enumerate(left))
    found = tuple(
        _link(host, links[min(one.index, other.index), max(one.index, other.index)], (a, one), (b, other))
        for a, one in enumerate(left)
        for b, other in enumerate(left[a + 1 :], a + 1)
    )
    names = Counter(device.name for device in shown)
    what = ", ".join(f"{count} × {name}" for name, count in names.items())
    version = re.match(r"\d[\w.]*", host.read("/sys/module/amdgpu/version") or "")
    reason = f"{what}{f', amdgpu {version[0]}' if version else ''}"
    bars = unfit(host, "rocm", "install torch's build for ROCm (+rocm6.4 …)", "pip install tensorflow-rocm")
    return Probe("rocm", "ready", reason, devices=shown, links=found, notes=(*notes, *_told(devices, shown)), unfit=bars)


def _blocked(reason: str, hint: str) -> Probe:
    return Probe("rocm", "blocked", reason, hint)


def _without(host: Host, hidden: int) -> Probe:
    cards = present.cards(host)
    if hidden and host.may_open(NODE) is not None:
        reason = f"{hidden} AMD GPUs are in the machine, and this container was given none of them"
        return _blocked(reason, f"docker run --device={NODE} --device=/dev/dri …; in Kubernetes a limit of amd.com/gpu")
    if not cards:
        return Probe("rocm", "absent", ABSENT)
    driver = (host.link(f"{pci.DEVICES}/{cards[0]}/driver") or "").rpartition("/")[2]
    count = f"{len(cards)} AMD GPU{'s' * (len(cards) > 1)} on PCI ({', '.join(cards[:4])})"
    if driver == "amdgpu":
        return _blocked(
            f"{count}, driven by amdgpu, but KFD has none of them", "dmesg | grep -i kfd; is the board one ROCm supports?"
        )
    return _blocked(f"{count}, and amdgpu does not drive them", "sudo modprobe amdgpu; sudo amdgpu-install --usecase=rocm")


def _nodes(host: Host) -> Probe | None:
    allowed = host.may_open(NODE)
    if allowed is None:
        return _blocked(
            f"AMD GPUs are here, but there is no {NODE}",
            f"docker run --device={NODE} --device=/dev/dri …; else modprobe amdgpu",
        )
    return _blocked(f"this user may not open {NODE}", f"ls -l {NODE}; {GROUPS}") if not allowed else None


def _device(host: Host, device: Device, place: int) -> Device:
    near, numa = pci.cores(host, device.pci), pci.numa_node(host, device.pci)
    name = (host.read(f"{pci.DEVICES}/{device.pci}/product_name") or "").strip().partition("\n")[0]
    native = _native(device.arch or "")
    sources = {name: source for name, source in device.sources.items() if name != "numa" or numa is None}
    sources |= {"numa": "sysfs"} if numa is not None else {}
    sources |= {"cores": "sysfs", "threads": "sysfs"} if near else {}
    sources |= {"native": "table"} if native else {}
    flops = peak(name) if device.part_of is None else None
    sources |= {"flops": "table"} if flops else {}
    used = (host.read(f"{pci.DEVICES}/{device.pci}/mem_info_vram_used") or "").strip() if device.part_of is None else ""
    sources |= {"used_bytes": "sysfs"} if used.isdigit() else {}
    return replace(
        device,
        index=place,
        name=name or device.name,
        numa=device.numa if numa is None else numa,
        cores=near,
        threads=len(near) if near else None,
        native=native,
        flops=flops,
        used_bytes=int(used) if used.isdigit() else None,
        sources=sources,
    )


def _native(arch: str) -> dict[str, str]:
    if arch.startswith(BF16):
        return {"bf16": "matrix cores", "fp16": "matrix cores", "fp32": "vector units"}
    if arch.startswith(FP16):
        return {"fp16": "matrix cores" if arch != "gfx906" else "vector units", "fp32": "vector units"}
    return {"fp32": "vector units"} if arch else {}


def _link(host: Host, link: Link, one: tuple[int, Device], other: tuple[int, Device]) -> Link:
    """The link between places in the enumeration; PCIe by the tree."""
    path = pci.path(host, one[1].pci, other[1].pci) or None
    name = path if link.class_ in ("PCIE", "") and path else link.class_
    if name != "XGMI":
        return replace(link, a=one[0], b=other[0], class_=name, path=None)
    count = link.count
    if count is None and (one[1].part_of is None or one[1].part_of != other[1].part_of):
        count = _links_each(host, one[1].pci, other[1].pci)
    return replace(link, a=one[0], b=other[0], path=path, count=count)


def _links_each(host: Host, *addresses: str | None) -> int | None:
    """How many xGMI links each two GPUs of a hive have, where the driver tells no speeds that say so.

    `xgmi_num_links` has a hexadecimal count for each GPU of the hive, 00 for the GPU itself, in an order that only the driver
    knows: so that it says something where all counts are equal (drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c).
    """
    told = [(host.read(f"{pci.DEVICES}/{address}/xgmi_num_links") or "").split() for address in addresses]
    counts = {count for each in told for count in each if count != "00"}
    if not all(told) or len(counts) != 1 or not re.fullmatch("[0-9a-f]{2}", next(iter(counts))):
        return None
    return int(counts.pop(), 16)


def _told(devices: tuple[Device, ...], shown: tuple[Device, ...]) -> list[str]:
    notes = []
    if len(shown) < len(devices):
        notes.append(f"{len(devices) - len(shown)} of {len(devices)} GPUs are hidden by masks")
    chips = Counter(device.part_of for device in shown if device.part_of)
    if chips:
        notes.append(f"{sum(chips.values())} devices are partitions of {len(chips)} GPUs: they share its memory's bandwidth")
    cost = straggler(shown)
    if cost:
        notes.append(f"mixed kinds ({cost}): a run over all waits for the slowest")
    return notes
