"""Findings about AMD's GPUs, from sysfs: lanes of PCIe, errors that memory could not correct, partitions, kinds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from hwal import pci
from hwal.finding import Finding
from hwal.host import Host
from hwal.values import Probe


def diagnose(host: Host, probe: Probe) -> Iterator[Finding]:
    """Findings about the visible GPUs, each by HIP's number."""
    for device in probe.devices:
        folder, subject = f"{pci.DEVICES}/{device.pci}", f"rocm {device.index}"
        now, most = (_number(host.read(f"{folder}/{name}_link_width")) for name in ("current", "max"))
        if now is not None and most is not None and now < most:
            remedy = "reseat the board; look up which slots share lanes; riser cables"
            so = "copies from the host are slower"
            yield Finding("warning", subject, "PCIe has fewer lanes than it could", f"x{now} of x{most}", so, remedy)
        errors = re.search(r"ue: (\d+)", host.read(f"{folder}/ras/umc_err_count") or "")
        if errors and int(errors[1]):
            remedy = "amd-smi metric --ecc; drain the GPU and reset it; replace the board if they come back"
            evidence = f"{errors[1]} uncorrectable errors, from the driver's RAS counters"
            yield Finding("error", subject, "its memory has had errors", evidence, "they end runs, or spoil them", remedy)
    kinds = Counter(device.arch for device in probe.devices)
    if len(kinds) > 1:
        evidence = ", ".join(f"{count} × {name}" for name, count in kinds.items())
        remedy = "HIP_VISIBLE_DEVICES of one kind: hwal devices select -k N --env"
        yield Finding("warning", "rocm", "GPUs of different kinds", evidence, "a run over all waits for the slowest", remedy)


def _number(text: str | None) -> int | None:
    return int(text.strip()) if text and text.strip().isdigit() else None
