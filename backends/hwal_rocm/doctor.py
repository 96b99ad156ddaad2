"""Findings about AMD's GPUs, from sysfs, and from amdsmi where it is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from hwal import pci
from hwal.errors import RecordError
from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Probe
from hwal_gpu import adapters, findings
from hwal_rocm.health import READER, Health, Ward

BRIDGE = "0x0604"  # PCI class of the bridges that a board has before its GPU
BLOCKS = {"umc": "its memory has had errors", "xgmi_wafl": "its xGMI links have had errors"}  # of the RAS counters
BUSY = 50  # percent: an idle board lowers its PCIe generation
BALANCING = "/proc/sys/kernel/numa_balancing"


def diagnose(host: Host, probe: Probe) -> Iterator[Finding]:
    """Findings about the visible GPUs, each by HIP's number."""
    ward, why = _ward(host)
    if why is not None:
        so = "what cuts clocks, and pages that wait to be retired, were not looked at; sysfs was"
        yield findings.unasked("rocm", why, so, "pip install /opt/rocm/share/amd_smi; amd-smi metric")
    told = {health.pci: health for health in ward.gpus}
    for device in probe.devices:
        subject = f"rocm {device.index}"
        yield from _sysfs(host, device, subject)
        if device.pci in told:
            yield from _amdsmi(told[device.pci], subject)
    yield from findings.together("rocm", probe.devices, "HIP_VISIBLE_DEVICES")
    yield from adapters.unclear(host)
    if (host.read(BALANCING) or "").strip() == "1" and len(probe.devices) > 1:
        so = "the kernel moves pages that GPUs read, and steps stutter"
        yield Finding("note", "rocm", "NUMA balancing is on", f"{BALANCING} is 1", so, f"echo 0 | sudo tee {BALANCING}")


def _ward(host: Host) -> tuple[Ward, str | None]:
    """What amdsmi tells, and why it tells nothing."""
    told = host.driver(READER)
    if told is None:
        return Ward(), "amdsmi has not been asked"
    try:
        return Ward.from_dict(told), None
    except RecordError as error:
        return Ward(), f"amdsmi's answer makes no sense: {error.what}"


def _amdsmi(health: Health, subject: str) -> Iterator[Finding]:
    if health.violations:
        evidence = f"amdsmi: {', '.join(health.violations)}"
        remedy = f"amd-smi metric --power --temperature --violation; {findings.COOLING}; {findings.CABLES}"
        so = "steps are slower, and all ranks wait for this one"
        yield Finding("warning", subject, "its clocks are cut", evidence, so, remedy)
    if health.links:
        evidence = "amdsmi: more than one error" if health.links > 1 else "amdsmi: an error"
        yield _links(subject, f"{evidence} since the last look", "warning")
    if health.pending:
        evidence = f"amdsmi: {health.pending} page{'s' * (health.pending > 1)} pending"
        remedy = "drain the GPU, then sudo amd-smi reset --gpureset"
        so = "errors have happened there, and may again"
        yield Finding("error", subject, "pages of its memory wait to be retired", evidence, so, remedy)


def _sysfs(host: Host, device: Device, subject: str) -> Iterator[Finding]:
    folder = f"{pci.DEVICES}/{device.pci}"
    chain = [folder, *(f"{pci.DEVICES}/{bridge}" for bridge in _own_bridges(host, device.pci))]
    widths = [(_number(host, f"{each}/current_link_width"), _number(host, f"{each}/max_link_width")) for each in chain]
    narrow = [(now, most) for now, most in widths if now and most and now < most]
    yield from findings.lanes(subject, *min(narrow, default=(None, None)))
    yield from _generation(host, chain, folder, subject)
    for name in host.names(f"{folder}/ras"):
        errors = re.search(r"ue: (\d+)", host.read(f"{folder}/ras/{name}") or "")
        if name.endswith("_err_count") and errors and int(errors[1]):
            block = name.removesuffix("_err_count")
            evidence = f"{errors[1]} uncorrectable errors, from the driver's RAS counters ({block})"
            if block == "xgmi_wafl":
                yield _links(subject, evidence, "error")
                continue
            remedy = "amd-smi metric --ecc; drain the GPU and reset it; replace the board if they come back"
            what = BLOCKS.get(block, "it has had errors that could not be corrected")
            yield Finding("error", subject, what, evidence, "they end runs, or spoil them", remedy)
    for sensor in host.names(f"{folder}/hwmon"):
        yield from _sensors(host, f"{folder}/hwmon/{sensor}", subject)


def _links(subject: str, evidence: str, level: Literal["error", "warning"]) -> Finding:
    remedy = "amd-smi xgmi; dmesg | grep -i xgmi; reseat the bridge or board where they grow"
    what, so = BLOCKS["xgmi_wafl"], "transfers between GPUs are repeated, or fail"
    return Finding(level, subject, what, evidence, so, remedy)


def _own_bridges(host: Host, address: str | None) -> list[str]:
    """AMD's bridges above a GPU: on boards that have some, the outermost is what the slot is wired to."""
    above = pci.above(host, address) if address else ()
    found = []
    for bridge in above[1:]:
        kind = (host.read(f"{pci.DEVICES}/{bridge}/class") or "").strip()
        if (host.read(f"{pci.DEVICES}/{bridge}/vendor") or "").strip() == "0x1002" and kind.startswith(BRIDGE):
            found.append(bridge)
    return found


def _generation(host: Host, chain: list[str], folder: str, subject: str) -> Iterator[Finding]:
    busy = _number(host, f"{folder}/gpu_busy_percent")
    for each in chain if busy is not None and busy >= BUSY else ():
        now, most = (re.match(r"[\d.]+", host.read(f"{each}/{name}_link_speed") or "") for name in ("current", "max"))
        if now and most and float(now[0]) < float(most[0]):
            yield from findings.slower(subject, f"{now[0]} of {most[0]} GT/s at {busy} % load")
            return


def _sensors(host: Host, folder: str, subject: str) -> Iterator[Finding]:
    """Temperatures (thousandths of a degree) and the power cap (millionths of a watt) of a hwmon folder."""
    for name in host.names(folder):
        if sensor := re.fullmatch(r"(temp\d+)_input", name):
            now, limit = _number(host, f"{folder}/{name}"), _number(host, f"{folder}/{sensor[1]}_crit")
            label = (host.read(f"{folder}/{sensor[1]}_label") or "").strip()
            if now is not None and limit:
                look = f"amd-smi metric --temperature ({label})" if label else "amd-smi metric --temperature"
                yield from findings.hot(subject, now / 1e3, limit / 1e3, look)
    cap, default = _number(host, f"{folder}/power1_cap"), _number(host, f"{folder}/power1_cap_default")
    if cap is not None and default is not None:
        yield from findings.capped(subject, cap / 1e6, default / 1e6, f"sudo amd-smi set --power-cap {default // 1_000_000}")


def _number(host: Host, path: str) -> int | None:
    text = (host.read(path) or "").strip()
    return int(text) if text.isdigit() else None
