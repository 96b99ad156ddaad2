"""Whether anything here hints at a TPU: most machines have none, and every command asks. The probe itself is imported then."""

from __future__ import annotations

from hwal.host import Host

VENDOR = "0x1ae0"  # Google
PCI = "/sys/bus/pci/devices"
VARIABLES = ("TPU_ACCELERATOR_TYPE", "COLAB_TPU_ADDR", "TPU_NAME")
ABSENT = "no chip of Google's is on PCI"


def is_hinted(host: Host) -> bool:
    """A device of Google's on PCI (a network card too), or a variable that names a TPU."""
    if any(host.env(name) for name in VARIABLES):
        return True
    return any((host.read(f"{PCI}/{address}/vendor") or "").strip() == VENDOR for address in host.names(PCI))
