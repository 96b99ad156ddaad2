"""Findings about NVIDIA's GPUs, from what NVML tells of them and of their health, and from the probe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hwal.errors import RecordError
from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Probe
from hwal_cuda import ask, virtual
from hwal_cuda.health import READER, Health, Ward
from hwal_cuda.report import LOST, RESET, Gpu, Report
from hwal_gpu import adapters, builds, findings

# nvmlClocksEventReasons that cut clocks: bit -> (what, remedy). Idle (1) and clocks that somebody set (2, 0x100) do not.
POWER = f"nvidia-smi -q -d POWER; raise the cap (sudo nvidia-smi -pl WATTS), {findings.CABLES}"
LOOK = "nvidia-smi -q -d TEMPERATURE"
HEAT = f"{LOOK}; {findings.COOLING}"
REASONS = {
    0x04: ("clocks are cut by the power cap", POWER),
    0x08: ("the hardware has cut clocks to half or less", f"{HEAT}; {POWER}"),
    0x20: ("clocks are cut because it is too hot", HEAT),
    0x40: ("the hardware has cut clocks because it is too hot", HEAT),
    0x80: ("an external power brake has cut clocks", POWER),
}
COVERED = {0x08: 0x40 | 0x80, 0x20: 0x40}  # the general reason is told only where none of its own causes is
# NVML_GPU_FABRIC_HEALTH_MASK_…: the bit from which a flag of two bits stands (1: true) -> what it says
FABRIC = {
    0: "its bandwidth is degraded",
    2: "its routes are being recovered",
    4: "a route is unhealthy",
    6: "access is being recovered after a timeout",
}


# A driver's first three digits -> the newest CUDA it runs (CUDA release notes, "CUDA Toolkit and Minimum Required Driver
# Version"), for where only nvidia-smi is asked
DRIVERS = ((580, 13), (525, 12), (450, 11))


# Compute capability (major) -> the first CUDA that makes code for it; and the least that a major version of CUDA still knows
# (CUDA release notes: "New Features" of 11.0, 11.8, 12.8 and 13.0; "Deprecated Architectures" of 12.0 and 13.0)
FIRST = {8: (11, 0), 9: (11, 8), 10: (12, 8), 11: (13, 0), 12: (12, 8)}
LEAST = {12: (5, 0), 13: (7, 5)}
# PyTorch's own wheels for x86-64 may hold less: CUDA -> (first torch, last torch, their least). From 2.9 on by PyTorch's
# RELEASE.md ("PyTorch CUDA Support Matrix"), 2.8 by .ci/manywheel/build_cuda.sh; what torch.cuda.get_arch_list() tells agrees.
# Those for CUDA 12.6 hold all that it makes code for, and each release from 2.6 to 2.14 has one.
WHEELS = {(12, 8): (((2, 8), (2, 10), (7, 0)), ((2, 11), (2, 11), (7, 5))), (12, 9): (((2, 8), (2, 8), (7, 0)),)}
WHOLE = (12, 6)
TOO_OLD = "leave it out (CUDA_VISIBLE_DEVICES): hwal takes torch 2.8 and newer, and no CUDA of theirs makes code for it"


def diagnose(host: Host, probe: Probe) -> Iterator[Finding]:
    """Findings about the visible GPUs, each by hwal's number, and about those that the driver has lost."""
    report = ask.report(host) or Report()
    ward, why = _ward(host)
    if why is not None:
        so = "heat, power, ECC, NVLinks and PCIe were not looked at"
        yield findings.unasked("cuda", why, so, "pip install nvidia-ml-py; nvidia-smi -q")
    shown = {device.outer: _number(device) for device in probe.devices}
    seen = [health for health in ward.gpus if health.index in shown]
    for health in seen:
        yield from _one(health, f"cuda {shown[health.index]}")
    yield from _lost(report.gpus)
    yield from _down([gpu for gpu in report.gpus if gpu.index in shown], shown)
    yield from _together(seen, shown, probe)
    yield from _virtual(virtual.shares(probe.devices, {gpu.index: gpu.virtual for gpu in report.gpus}))
    yield from adapters.unclear(host)
    yield from _torch(host, report)
    yield from _code(host, [gpu for gpu in report.gpus if gpu.index in shown], shown)


def _number(device: Device) -> str:
    """hwal's number, and nvidia-smi's where that is another: `0 (nvidia-smi's 3)`."""
    same = device.outer is None or device.outer == device.index
    return str(device.index) if same else f"{device.index} (nvidia-smi's {device.outer})"


def _ward(host: Host) -> tuple[Ward, str | None]:
    """What NVML tells, or nvidia-smi in its place; and why nothing is told."""
    told = host.driver(READER)
    if told is None:
        from hwal_cuda.smi_health import read_smi  # for machines without nvidia-ml-py

        ward = read_smi(host)
        return (Ward(), "NVML has not been asked") if ward is None else (ward, None)
    try:
        return Ward.from_dict(told), None
    except RecordError as error:
        return Ward(), f"NVML's answer makes no sense: {error.what}"


def _one(health: Health, subject: str) -> Iterator[Finding]:
    for bit, (what, remedy) in REASONS.items():
        if health.throttle is not None and health.throttle & bit and not health.throttle & COVERED.get(bit, 0):
            evidence = f"clocks event reasons {health.throttle:#x}"
            yield Finding("warning", subject, what, evidence, "steps are slower, and all ranks wait for this one", remedy)
    yield from findings.hot(subject, health.temperature, health.slowdown, LOOK)
    cap, default = (None if value is None else value / 1000 for value in (health.power, health.default_power))
    yield from findings.capped(subject, cap, default, f"sudo nvidia-smi -i {health.index} -pl {default or 0:g}")
    if health.uncorrected:
        evidence = f"{health.uncorrected} uncorrectable ECC errors since the driver was loaded"
        remedy = f"nvidia-smi -q -d ECC,ROW_REMAPPER; drain the GPU, then sudo nvidia-smi -i {health.index} -r"
        yield Finding("error", subject, "its memory has had errors", evidence, "they end runs, or spoil them", remedy)
    if health.failed:
        what, why = "rows of its memory cannot be remapped any more", "row remapping has failed"
        yield Finding("error", subject, what, why, "errors in memory will end runs", "replace the board (RMA)")
    elif health.pending:
        what, why = "rows of its memory wait to be remapped", "remapping is pending"
        remedy = f"drain the GPU, then sudo nvidia-smi -i {health.index} -r"
        yield Finding("error", subject, what, why, "an uncorrectable error has happened there, and may again", remedy)
    if health.ecc is not None and health.ecc[0] != health.ecc[1]:
        evidence, remedy = _waiting(health.ecc), f"sudo nvidia-smi -i {health.index} -r"
        yield Finding("note", subject, "a change of ECC waits for a reset", evidence, "memory size will change", remedy)
    if health.mig is not None and health.mig[0] != health.mig[1]:
        evidence, remedy = _waiting(health.mig), f"sudo nvidia-smi -i {health.index} -r"
        yield Finding("note", subject, "a change of MIG mode waits for a reset", evidence, "it is in the old mode", remedy)
    if health.link_errors:
        evidence = f"{health.link_errors} replays and recoveries since the driver was loaded"
        remedy = "nvidia-smi nvlink -e; reseat the bridge or board where they grow"
        yield Finding("warning", subject, "its NVLinks have had errors", evidence, "transfers were repeated", remedy)
    yield from findings.lanes(subject, *(health.width or (None, None)))
    if health.busy and health.generation is not None and health.generation[0] < health.generation[1]:
        yield from findings.slower(subject, f"generation {health.generation[0]} of {health.generation[1]} with clocks up")
    yield from _fabric(health, subject)


def _waiting(mode: tuple[int, int]) -> str:
    return f"now {'on' if mode[0] else 'off'}, {'on' if mode[1] else 'off'} after a reset"


def _fabric(health: Health, subject: str) -> Iterator[Finding]:
    """A fabric that is not ready blocks the backend; one that is may still not be whole."""
    troubles = [text for shift, text in FABRIC.items() if health.fabric is not None and health.fabric >> shift & 3 == 1]
    if troubles:
        remedy = "journalctl -u nvidia-fabricmanager; nvidia-smi -q | grep -A9 Fabric; dmesg | grep -i -e xid -e nvswitch"
        so = "all-reduces are slower, or stop for a while"
        yield Finding("warning", subject, "its NVLink fabric is not whole", ", ".join(troubles), so, remedy)


def _lost(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs that NVML lists and cannot reach, whatever the masks: CUDA may not start because of one that nobody asked for."""
    for gpu in gpus:
        if gpu.trouble is None:
            continue
        reset = f"end what runs on it, then sudo nvidia-smi -i {gpu.index} -r; else reboot"
        remedy = {RESET: reset, LOST: "dmesg | grep -i xid; reboot"}.get(gpu.trouble.code, f"dmesg | grep -i nvrm; {reset}")
        evidence = f"NVML error {gpu.trouble.code}: {gpu.trouble.text}"
        so = "it is left out, and CUDA may not start on the others"
        yield Finding("error", "cuda", gpu.lost, evidence, so, remedy)


def _down(gpus: Sequence[Gpu], shown: dict[int | None, str]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.down and gpu.ports:
            evidence = f"{gpu.down} of {gpu.down + len(gpu.ports)} are down"
            so, remedy = "transfers to its neighbours are slower", f"nvidia-smi nvlink -s -i {gpu.index}; reseat the bridge"
            yield Finding("warning", f"cuda {shown[gpu.index]}", "some of its NVLinks are down", evidence, so, remedy)


def _together(seen: list[Health], shown: dict[int | None, str], probe: Probe) -> Iterator[Finding]:
    off = [shown[health.index] for health in seen if health.persistence is False]
    if off:
        evidence, remedy = (
            f"off on GPU {', '.join(off)}",
            "sudo nvidia-smi -pm 1, or systemctl enable --now nvidia-persistenced",
        )
        yield Finding("note", "cuda", "persistence mode is off", evidence, "each start of CUDA takes seconds longer", remedy)
    modes = {bool(health.mig[0]) for health in seen if health.mig is not None}
    if len(modes) > 1:
        evidence = ", ".join(f"{shown[h.index]} {'on' if h.mig and h.mig[0] else 'off'}" for h in seen)
        remedy = "sudo nvidia-smi -mig 0, or take the instances one by one"
        yield Finding(
            "warning", "cuda", "some GPUs are in MIG mode, others not", evidence, "those in MIG mode are left out", remedy
        )
    yield from findings.together("cuda", probe.devices, "CUDA_VISIBLE_DEVICES")
    broken = [f"{link.a}-{link.b}" for link in probe.links if link.p2p is False]
    if broken:
        remedy = "none on GeForce boards; elsewhere turn off ACS and IOMMU translation on the paths (iommu=pt)"
        yield Finding("note", "cuda", "pairs without P2P", " ".join(broken), "what they exchange goes through the host", remedy)


def _virtual(found: Sequence[Device]) -> Iterator[Finding]:
    if found:
        evidence = ", ".join(f"{device.index} is {device.name}" for device in found)
        so = "others take from its speed, without a licence the driver slows it down, and its health is for the host to see"
        remedy = "nvidia-smi -q | grep -A3 -i license; for all of a board: pass it through, or take its largest profile"
        yield Finding("note", "cuda", "GPUs that a hypervisor shares out (vGPU)", evidence, so, remedy)
    for device in found:
        if virtual.series(device.name) in virtual.DESKTOPS:
            what, so = (
                "its vGPU profile is one for desktops",
                "NVIDIA supports CUDA on series C and Q alone: a run may not start",
            )
            remedy = "ask for a profile of series C (computing) or Q"
            yield Finding("warning", f"cuda {_number(device)}", what, str(device.name), so, remedy)


def _torch(host: Host, report: Report) -> Iterator[Finding]:
    """torch's CUDA against the driver's: within a major version any driver since its first will do."""
    wanted, version = builds.toolkit(host), re.match(r"\d+", report.driver or "")
    most = report.cuda // 1000 if report.cuda else None
    if most is None and version is not None:
        most = next((cuda for first, cuda in DRIVERS if int(version[0]) >= first), None)
    if wanted is None or most is None or wanted[0] <= most:
        return
    runs = f"CUDA up to {most}.{report.cuda % 1000 // 10}" if report.cuda else f"CUDA up to {most} (by a table of drivers)"
    evidence = f"torch {host.version('torch')} is built for CUDA {wanted[0]}.{wanted[1]}; driver {report.driver} runs {runs}"
    remedy = f"update the driver, or install torch's build for CUDA {most}"
    yield Finding(
        "error", "torch", "torch is built for a newer CUDA than the driver has", evidence, "no GPU can be used", remedy
    )


def _code(host: Host, gpus: Sequence[Gpu], shown: dict[int | None, str]) -> Iterator[Finding]:
    """Whether the CUDA that torch is built for makes code for the visible GPUs, and torch's wheel holds it; what another build
    holds, only torch tells."""
    cuda = builds.toolkit(host)
    if cuda is None:
        return
    build = f"torch {host.version('torch')} is built for CUDA {cuda[0]}.{cuda[1]}"
    least, held = LEAST.get(cuda[0], (0, 0)), _held(host, cuda)
    if held is not None and held > least:
        least, build = held, f"{build}, its wheel for sm_{held[0]}{held[1]} and newer"
    for capability in sorted({gpu.capability for gpu in gpus if gpu.capability}):
        first = FIRST.get(capability[0], (0, 0))
        if cuda >= first and capability >= least:
            continue
        which = ", ".join(shown[gpu.index] for gpu in gpus if gpu.capability == capability)
        evidence = f"{build}; cuda {which}: sm_{capability[0]}{capability[1]}"
        remedy = TOO_OLD
        if cuda < first:
            remedy = f"install torch's build for CUDA {first[0]}.{first[1]} or newer"
        elif capability >= LEAST[WHOLE[0]]:
            remedy = f"install torch's build for CUDA {WHOLE[0]}.{WHOLE[1]}"
        so = "its kernels do not run there (no kernel image is available)"
        yield Finding("error", "torch", "torch has no code for a GPU", evidence, so, remedy)


def _held(host: Host, cuda: tuple[int, int]) -> tuple[int, int] | None:
    """The least compute capability that torch's own wheel has code for; None where the table has no such wheel."""
    torch = builds.wheel(host)
    if torch is None or host.machine not in ("x86_64", "AMD64"):
        return None
    return next((least for first, last, least in WHEELS.get(cuda, ()) if first <= torch <= last), None)
