"""What the control groups of this process leave it of a Linux machine: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hwal.host import Host

MOUNT = "/sys/fs/cgroup"
NO_LIMIT = 1 << 60  # version 1 says "no limit" by the largest number of bytes that fits whole pages into 63 bits


class Limits(NamedTuple):
    """CPUs' worth of time (1.5: three halves of one CPU), and bytes; None: not limited, or not known."""

    cpus: float | None = None
    memory_bytes: int | None = None


def limits(host: Host) -> Limits:
    """The tightest limits among the process's groups and all their ancestors, in either version of control groups."""
    groups = host.read("/proc/self/cgroup") or ""
    quotas = [_quota(host, version, folder) for version, folder in _folders(groups, "cpu")]
    memory = [_memory(host, version, folder) for version, folder in _folders(groups, "memory")]
    return Limits(
        min((quota for quota in quotas if quota is not None), default=None),
        min((limit for limit in memory if limit is not None), default=None),
    )


def available(host: Host) -> int | None:
    """Bytes that this process may still take: what the kernel has to give, or the least that a group leaves; None where
    nobody says (Linux does)."""
    free = [_kilobytes(host.read("/proc/meminfo"), "MemAvailable:")]
    for version, folder in _folders(host.read("/proc/self/cgroup") or "", "memory"):
        limit = _memory(host, version, folder)
        used = positive(host.read(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}"))
        if limit is not None and used is not None:
            # Files that were read count as used, and are dropped when memory is wanted.
            cached = _row(host.read(f"{folder}/memory.stat"), "inactive_file" if version == 2 else "total_inactive_file")
            free.append(max(0, limit - used + (cached or 0)))
    return min((number for number in free if number is not None), default=None)


def _row(text: str | None, name: str) -> int | None:
    """The number behind a name, in a file of `name number` lines."""
    rows = (line.split() for line in (text or "").splitlines())
    return next((positive(row[1]) for row in rows if len(row) > 1 and row[0] == name), None)


def _kilobytes(text: str | None, name: str) -> int | None:
    number = _row(text, name)
    return None if number is None else number * 1024


def _folders(groups: str, controller: str) -> Iterator[tuple[int, str]]:
    """(version, folder) of each group that binds this process.

    In a container the path is often the host's, and only the mount's root exists: it is always among the ancestors.
    """
    paths = {1: "/", 2: "/"}
    mounts = {1: [f"{MOUNT}/{controller}"], 2: [MOUNT, f"{MOUNT}/unified"]}
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if line.startswith("0::"):
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
            if controllers != controller:
                mounts[1].append(f"{MOUNT}/{controllers}")
    for version, path in paths.items():
        parts = [part for part in path.split("/") if part]
        for mount in mounts[version]:
            for depth in range(len(parts), -1, -1):
                yield version, "/".join([mount, *parts[:depth]])


def _quota(host: Host, version: int, folder: str) -> float | None:
    if version == 2:
        quota, _, period = (host.read(f"{folder}/cpu.max") or "").strip().partition(" ")
    else:
        quota = host.read(f"{folder}/cpu.cfs_quota_us") or ""
        period = (host.read(f"{folder}/cpu.cfs_period_us") or "") if quota else ""
    microseconds, of = positive(quota), positive(period)
    return microseconds / of if microseconds and of else None


def _memory(host: Host, version: int, folder: str) -> int | None:
    limit = positive(host.read(f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}"))
    return limit if limit and limit < NO_LIMIT else None


def positive(text: str | None) -> int | None:
    """The whole number above 0 that `text` is; None for all else (absent, empty, "max", -1, garbage)."""
    text = (text or "").strip()
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < 20 else None
