"""What sysfs tells of a PCI device: its NUMA node, the CPU cores beside it, and where its path meets another's."""

from __future__ import annotations

from hwal.host import Host

DEVICES = "/sys/bus/pci/devices"


def addresses(host: Host, vendor: str, classes: tuple[str, ...]) -> list[str]:
    """Addresses of a vendor's devices ("0x10de") of some classes ("0x0302", without the interface byte), in PCI order."""
    listed = host.read("/proc/bus/pci/devices")
    if listed is not None and vendor[2:] not in listed:  # one file instead of one for each device
        return []
    found = []
    for address in host.names(DEVICES):
        if (host.read(f"{DEVICES}/{address}/vendor") or "").strip() == vendor:
            kind = (host.read(f"{DEVICES}/{address}/class") or "").strip()
            if kind[:6] in classes:
                found.append(address)
    return found


def numa_node(host: Host, address: str | None) -> int | None:
    """The node that the device hangs on; None where firmware does not say (-1)."""
    text = (host.read(f"{DEVICES}/{address}/numa_node") or "").strip() if address else ""
    return int(text) if text.isdigit() else None


def cores(host: Host, address: str | None) -> tuple[int, ...] | None:
    """Cores beside the device that this process may use, one for each physical core; None where sysfs does not say."""
    near = expand(host.read(f"{DEVICES}/{address}/local_cpulist")) if address else []
    allowed = host.affinity()
    usable = [cpu for cpu in near if allowed is None or cpu in allowed]
    taken: set[int] = set()
    chosen = []
    for cpu in usable:
        if cpu not in taken:
            chosen.append(cpu)
            folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
            taken.update(expand(host.read(f"{folder}/thread_siblings_list")))
    return tuple(chosen) or None


def expand(text: str | None) -> list[int]:
    """`0-3,8` as numbers; what is no such list is empty."""
    numbers: list[int] = []
    for part in (text or "").strip().split(","):
        low, dash, high = part.partition("-")
        if not (low.isdigit() and (high.isdigit() if dash else not high)) or int(high or low) - int(low) > 65536:
            return []
        numbers += range(int(low), int(high or low) + 1)
    return numbers


def above(host: Host, address: str) -> tuple[str, ...]:
    """Host bridge and PCI bridges above a device, from the top: its link in sysfs names them all."""
    parts = (host.link(f"{DEVICES}/{address}") or "").split("/")
    at = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return tuple(parts[at:-1])


def path(host: Host, one: str | None, other: str | None) -> str:
    """Where two devices meet: PIX (one switch), PXB (several), PHB (a host bridge), NODE, SYS; "" where it is not known."""
    if one is None or other is None:
        return ""
    first, second = above(host, one), above(host, other)
    if not first or not second:
        return ""
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    if shared == 0:
        nodes = numa_node(host, one), numa_node(host, other)
        return "NODE" if None not in nodes and nodes[0] == nodes[1] else "SYS"
    if shared == 1:
        return "PHB"
    # a switch is its upstream port, which both paths share, and a downstream port for each
    return "PIX" if max(len(first), len(second)) - shared <= 1 else "PXB"
