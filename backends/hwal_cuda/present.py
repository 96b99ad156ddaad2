"""Whether it is worth asking for NVIDIA's GPUs: a few files, looked at on every start of hwal, on machines without any too."""

from __future__ import annotations

from hwal import pci
from hwal.host import Host

ABSENT = "no NVIDIA GPU and no driver for one"
VENDOR, CLASSES = "0x10de", ("0x0300", "0x0302")
MODULE, CONTROL, WSL = "/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"
DLL = "C:/Windows/System32/nvml.dll"


def has_driver(host: Host) -> bool:
    """Whether a driver has left its files."""
    nodes = {"linux": (CONTROL, WSL), "win32": (DLL,)}.get(host.system, ())
    return host.read(MODULE) is not None or any(host.may_open(path) is not None for path in nodes)


def cards(host: Host) -> list[str]:
    """Addresses of the GPUs on PCI, with a driver or without."""
    return pci.addresses(host, VENDOR, CLASSES) if host.system == "linux" else []
