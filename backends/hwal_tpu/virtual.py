"""`tpu:cpu`, `tpu:cpu:4`: XLA's own CPU platform in the place of the chips, with as many virtual devices as asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from hwal.cgroup import limits
from hwal.host import Host
from hwal.topology import Device, Link
from hwal.values import Probe
from hwal_tpu.packages import platform_trouble, shown, tensorflow_alone, torch_xla_trouble

ARCH = "cpu"
MOST = 64
TENSORFLOWS = "tf-"  # how the ids of devices begin that only Keras can train on


def count(spec: str | None) -> int | None:
    """The devices that `cpu` or `cpu:4` asks for; None where the spec is neither. 0 where the number is out of range."""
    match = re.fullmatch("cpu(?::([0-9]{1,5}))?", (spec or "").strip().lower(), re.ASCII)
    if match is None:
        return None
    number = int(match[1] or 1)
    return number if number <= MOST else 0


def is_meant(spec: str | None) -> bool:
    """Whether XLA's CPU platform is asked for, be it in a way that count() does not understand."""
    return (spec or "").strip().lower().startswith("cpu")


def is_virtual(device: Device) -> bool:
    return device.backend == "tpu" and device.arch == ARCH


def is_tensorflows(device: Device) -> bool:
    """Whether a virtual device is there for Keras only, since torch_xla is not installed."""
    return is_virtual(device) and (device.id or "").startswith(TENSORFLOWS)


def probe(host: Host, number: int) -> Probe:
    """`number` virtual devices that share the CPU and its memory, where torch_xla is installed and may use its CPU platform,
    or TensorFlow alone."""
    tensorflow = tensorflow_alone(host)
    if found := None if tensorflow else torch_xla_trouble(host) or platform_trouble(host, "CPU"):
        return Probe("tpu", "blocked", found.reason, found.hint)
    memory, source = _memory(host)
    share = None if memory is None else memory // number or None
    device = Device("tpu", 0, "XLA CPU device", None, share, None, ARCH, native={"fp32": "XLA:CPU"})
    sources = {"native": "table", "arch": "table"} | ({} if share is None else {"memory_bytes": source})
    prefix = TENSORFLOWS if tensorflow else ""
    devices = tuple(replace(device, index=index, id=f"{prefix}cpu{index}", sources=sources) for index in range(number))
    links = tuple(Link(a, b, "HOST", source="table", backend="tpu") for a, b in combinations(range(number), 2))
    devices_text = "1 device" if number == 1 else f"{number} virtual devices"
    return Probe(
        "tpu",
        "ready",
        f"{devices_text} of XLA's CPU platform, {tensorflow or 'torch_xla ' + shown(host.version('torch_xla') or '')}",
        devices=devices,
        links=links,
        notes=("no TPU: the same program and the same graphs, at the speed of this CPU",),
    )


def _memory(host: Host) -> tuple[int | None, str]:
    match = re.search(r"\bMemTotal:\s*([0-9]{1,15}) kB", host.read("/proc/meminfo") or "")
    total = int(match[1]) * 1024 or None if match else None
    limit = limits(host).memory_bytes
    if limit is not None and (total is None or limit < total):
        return limit, "cgroup"
    return total, "procfs"
