"""What lies on the paths between devices: an IOMMU that translates what peers send each other over PCIe, and ACS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwal import pci
from hwal.finding import Finding
from hwal.host import Host
from hwal.values import Probe

GROUPS = "/sys/kernel/iommu_groups"
OFF = "turn off ACS on the switches (setpci … ECAP_ACS+6.w=0; in the firmware for good), but in virtual machines"
TRANSLATES = ("DMA", "DMA-FQ")  # Documentation/ABI/testing/sysfs-kernel-iommu_groups; identity is what iommu=pt gives


def paths(host: Host, probes: Sequence[Probe]) -> Iterator[Finding]:
    """One finding for a backend of which two devices reach each other over PCIe and are translated."""
    for probe in probes:
        over_pcie = {index for link in probe.links if link.count is None and link.class_ for index in (link.a, link.b)}
        kinds = {device.index: _translation(host, device.pci) for device in probe.devices if device.index in over_pcie}
        translated = [str(index) for index, kind in kinds.items() if kind in TRANSLATES]
        if len(translated) > 1:
            yield Finding(
                "warning",
                probe.backend,
                "an IOMMU translates what devices send each other over PCIe",
                f"devices {', '.join(translated)}: their IOMMU groups are of type DMA, from sysfs",
                "P2P goes up to the root and back, and may hang in NCCL; ACS has the same effect",
                f"boot with iommu=pt, and {OFF}",
            )
        else:
            yield from _acs(host, probe)


def _acs(host: Host, probe: Probe) -> Iterator[Finding]:
    """Devices below one switch that the kernel isolates from each other: it can only where ACS sends all they say up."""
    groups = {device.index: _group(host, device.pci) for device in probe.devices}
    apart = [
        f"{link.a}-{link.b}"
        for link in probe.links
        if (link.path or link.class_) in ("PIX", "PXB")
        and groups[link.a]
        and groups[link.b]
        and groups[link.a] != groups[link.b]
    ]
    if apart:
        yield Finding(
            "warning",
            probe.backend,
            "ACS is on between devices below one switch",
            f"pairs {' '.join(apart)} are in IOMMU groups of their own, from sysfs",
            "what they send each other over PCIe goes up to the root and back",
            OFF,
        )


def _group(host: Host, address: str | None) -> str:
    return (host.link(f"{pci.DEVICES}/{address}/iommu_group") or "").rpartition("/")[2] if address else ""


def _translation(host: Host, address: str | None) -> str | None:
    group = _group(host, address)
    return (host.read(f"{GROUPS}/{group}/type") or "").strip() or None if group else None
