"""Whether it is worth asking for AMD's GPUs: a few files, looked at on every start of hwal, on machines without any too."""

from __future__ import annotations

from hwal import pci
from hwal.host import Host

ABSENT = "no AMD GPU that computes"
VENDOR, CLASSES = "0x1002", ("0x0300", "0x0380", "0x1200")
NODES = "/sys/class/kfd/kfd/topology/nodes"


def is_hinted(host: Host) -> bool:
    """Whether KFD has nodes, or PCI a board."""
    return host.system == "linux" and bool(host.names(NODES) or cards(host))


def cards(host: Host) -> list[str]:
    """Addresses of the GPUs on PCI, with a driver or without."""
    return pci.addresses(host, VENDOR, CLASSES)
