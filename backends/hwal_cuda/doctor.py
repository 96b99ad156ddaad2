"""Findings about NVIDIA's GPUs, from what NVML tells of their health and from the probe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from hwal.errors import RecordError
from hwal.finding import Finding
from hwal.host import Host
from hwal.values import Probe
from hwal_cuda.health import READER, Health, Ward

# nvmlClocksEventReasons that cut clocks: bit -> (what, remedy). Idle (1) and clocks that somebody set (2, 0x100) do not.
POWER = "nvidia-smi -q -d POWER; raise the cap (sudo nvidia-smi -pl WATTS), check that every power connector has its own cable"
HEAT = "nvidia-smi -q -d TEMPERATURE; clean filters, free the airflow, raise fan speed: boards throttle near 84 to 90 °C"
REASONS = {
    0x04: ("clocks are cut by the power cap", POWER),
    0x08: ("the hardware has cut clocks to half or less", f"{HEAT}; {POWER}"),
    0x20: ("clocks are cut because it is too hot", HEAT),
    0x40: ("the hardware has cut clocks because it is too hot", HEAT),
    0x80: ("an external power brake has cut clocks", POWER),
}
NEAR = 5  # °C below the slowdown threshold


def diagnose(host: Host, probe: Probe) -> Iterator[Finding]:
    """Findings about the visible GPUs, each by NVML's number."""
    told = host.driver(READER)
    try:
        ward = Ward.from_dict(told) if told is not None else Ward()
    except RecordError:
        ward = Ward()
    outer = {device.outer for device in probe.devices}
    seen = [health for health in ward.gpus if health.index in outer]
    for health in seen:
        yield from _one(health, f"cuda {health.index}")
    yield from _together(seen, probe)
    yield from _torch(host, probe)


def _one(health: Health, subject: str) -> Iterator[Finding]:
    for bit, (what, remedy) in REASONS.items():
        if health.throttle is not None and health.throttle & bit:
            evidence = f"clocks event reasons {health.throttle:#x}"
            yield Finding("warning", subject, what, evidence, "steps are slower, and all ranks wait for this one", remedy)
    if health.temperature is not None and health.slowdown is not None and health.temperature >= health.slowdown - NEAR:
        evidence = f"{health.temperature} °C; clocks are cut at {health.slowdown} °C"
        yield Finding("warning", subject, "it is almost too hot", evidence, "its clocks will be cut under load", HEAT)
    if health.power is not None and health.default_power is not None and health.power < health.default_power:
        evidence = f"{health.power // 1000} W, by default {health.default_power // 1000} W"
        remedy = f"sudo nvidia-smi -i {health.index} -pl {health.default_power // 1000}, unless somebody meant it"
        yield Finding("warning", subject, "its power cap is below the default", evidence, "steps are slower", remedy)
    if health.failed:
        what, why = "rows of its memory cannot be remapped any more", "row remapping has failed"
        yield Finding("error", subject, what, why, "errors in memory will end runs", "replace the board (RMA)")
    elif health.pending:
        what, why = "rows of its memory wait to be remapped", "remapping is pending"
        remedy = f"drain the GPU, then sudo nvidia-smi -i {health.index} -r"
        yield Finding("error", subject, what, why, "an uncorrectable error has happened there, and may again", remedy)
    if health.ecc is not None and health.ecc[0] != health.ecc[1]:
        evidence = f"now {'on' if health.ecc[0] else 'off'}, {'on' if health.ecc[1] else 'off'} after a reset"
        remedy = f"sudo nvidia-smi -i {health.index} -r"
        yield Finding("note", subject, "a change of ECC waits for a reset", evidence, "memory size will change", remedy)
    if health.mig is not None and health.mig[0] != health.mig[1]:
        remedy = f"sudo nvidia-smi -i {health.index} -r"
        yield Finding(
            "note", subject, "a change of MIG mode waits for a reset", f"{health.mig}", "it is in the old mode", remedy
        )
    if health.link_errors:
        evidence = f"{health.link_errors} replays and recoveries since the driver was loaded"
        remedy = "nvidia-smi nvlink -e; reseat the bridge or board where they grow"
        yield Finding("warning", subject, "its NVLinks have had errors", evidence, "transfers were repeated", remedy)
    yield from _pcie(health, subject)


def _pcie(health: Health, subject: str) -> Iterator[Finding]:
    """Fewer lanes than the slot has are always worth a word; a lower generation is how an idle board saves power."""
    if health.width is not None and health.width[0] < health.width[1]:
        evidence = f"x{health.width[0]} of x{health.width[1]}"
        remedy = "reseat the board; look up which slots share lanes; riser cables"
        yield Finding(
            "warning", subject, "PCIe has fewer lanes than it could", evidence, "copies from the host are slower", remedy
        )
    if health.busy and health.generation is not None and health.generation[0] < health.generation[1]:
        evidence = f"generation {health.generation[0]} of {health.generation[1]} with clocks up"
        remedy = "firmware settings of the slot; riser cables; dmesg | grep -i aer"
        yield Finding(
            "warning", subject, "PCIe is slower than it could be", evidence, "copies from the host are slower", remedy
        )


def _together(seen: list[Health], probe: Probe) -> Iterator[Finding]:
    off = [str(health.index) for health in seen if health.persistence is False]
    if off:
        evidence, remedy = (
            f"off on GPU {', '.join(off)}",
            "sudo nvidia-smi -pm 1, or systemctl enable --now nvidia-persistenced",
        )
        yield Finding("note", "cuda", "persistence mode is off", evidence, "each start of CUDA takes seconds longer", remedy)
    modes = {bool(health.mig[0]) for health in seen if health.mig is not None}
    if len(modes) > 1:
        evidence = ", ".join(f"{h.index} {'on' if h.mig and h.mig[0] else 'off'}" for h in seen)
        remedy = "sudo nvidia-smi -mig 0, or take the instances one by one"
        yield Finding(
            "warning", "cuda", "some GPUs are in MIG mode, others not", evidence, "those in MIG mode are left out", remedy
        )
    kinds = Counter(device.name for device in probe.devices)
    if len(kinds) > 1:
        evidence = ", ".join(f"{count} × {name}" for name, count in kinds.items())
        remedy = "CUDA_VISIBLE_DEVICES of one kind: hwal devices select -k N --env"
        yield Finding("warning", "cuda", "GPUs of different kinds", evidence, "a run over all waits for the slowest", remedy)
    down = [note for note in probe.notes if "NVLinks are down" in note or "fallen off" in note]
    for note in down:
        level, remedy = ("error", "dmesg | grep -i xid; reboot") if "fallen" in note else ("warning", "nvidia-smi nvlink -s")
        yield Finding("error" if level == "error" else "warning", "cuda", note, "NVML", "fewer or slower devices", remedy)
    broken = [f"{link.a}-{link.b}" for link in probe.links if link.p2p is False]
    if broken:
        remedy = "none on GeForce boards; elsewhere turn off ACS and IOMMU translation on the paths (iommu=pt)"
        yield Finding("note", "cuda", "pairs without P2P", " ".join(broken), "what they exchange goes through the host", remedy)


def _torch(host: Host, probe: Probe) -> Iterator[Finding]:
    """torch's CUDA against the driver's: within a major version any driver since its first will do."""
    version = host.version("torch") or ""
    build = re.search(r"\+cu(\d+)(\d)$", version)
    driver = re.search(r"CUDA (\d+)\.(\d+)", probe.reason)
    if build and driver and int(build[1]) > int(driver[1]):
        evidence = f"torch {version}; the driver runs CUDA up to {driver[1]}.{driver[2]}"
        remedy = f"update the driver, or install torch's build for CUDA {driver[1]}"
        yield Finding(
            "error", "torch", "torch is built for a newer CUDA than the driver has", evidence, "no GPU can be used", remedy
        )
