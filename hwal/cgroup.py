"""What the control groups of this process leave it of a Linux machine: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hwal.host import Host

MOUNT = "/sys/fs/cgroup"
LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
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


class Group(NamedTuple):
    """A group with a limit of memory: bytes it may take and takes, without what the kernel drops when it is wanted; the limit's
    file."""

    limit: int
    used: int | None
    file: str


def memory_groups(host: Host) -> Iterator[Group]:
    """The groups that limit this process's memory."""
    for version, folder in _folders(host.read("/proc/self/cgroup") or "", "memory"):
        limit = _memory(host, version, folder)
        if limit is None:
            continue
        used = positive(host.read(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}"))
        if used is not None:
            # Files that were read count as used, and are dropped when memory is wanted.
            cached = _row(host.read(f"{folder}/memory.stat"), "inactive_file" if version == 2 else "total_inactive_file")
            used = max(0, used - (cached or 0))
        yield Group(limit, used, f"{folder}/{LIMIT_FILES[version]}")


def available(host: Host) -> int | None:
    """Bytes that this process may still take: what the kernel has to give, or the least that a group leaves; None where
    nobody says (Linux does)."""
    free = [_kilobytes(host.read("/proc/meminfo"), "MemAvailable:")]
    free += [max(0, group.limit - group.used) for group in memory_groups(host) if group.used is not None]
    return min((number for number in free if number is not None), default=None)


class Kills(NamedTuple):
    """How often the kernel has killed for memory: processes of this one's group, and of the whole machine; and how often a
    limit of its groups was reached. None where nobody counts."""

    group: int | None = None
    machine: int | None = None
    limit: int | None = None


def kills(host: Host) -> Kills:
    """The counters as they stand. A kill adds one to the victim's group, and the machine's; whether a limit was the cause, the
    third tells: in version 1 it stands in the group that has the limit, in version 2 all of it is passed up."""
    folders = list(_folders(host.read("/proc/self/cgroup") or "", "memory"))
    killed, reached = [], []
    for version, folder in folders:
        if version == 2:
            events = host.read(f"{folder}/memory.events")
            killed.append(_count(events, "oom_kill"))
            reached.append(_count(events, "oom"))
        else:
            killed.append(_count(host.read(f"{folder}/memory.oom_control"), "oom_kill"))
            reached.append(_whole(host.read(f"{folder}/memory.failcnt")))
    return Kills(
        next((count for count in killed if count is not None), None),  # the innermost that counts
        _count(host.read("/proc/vmstat"), "oom_kill"),
        sum(found) if (found := [count for count in reached if count is not None]) else None,
    )


def _count(text: str | None, name: str) -> int | None:
    rows = (line.split() for line in (text or "").splitlines())
    return next((_whole(row[1]) for row in rows if len(row) > 1 and row[0] == name), None)


def _whole(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None


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
    limit = positive(host.read(f"{folder}/{LIMIT_FILES[version]}"))
    return limit if limit and limit < NO_LIMIT else None


def positive(text: str | None) -> int | None:
    """The whole number above 0 that `text` is; None for all else (absent, empty, "max", -1, garbage)."""
    text = (text or "").strip()
    return int(text) or None if text.isascii() and text.isdecimal() and len(text) < 20 else None
