"""Memory that ran short: which limit a process is under, and whether the kernel killed it for memory."""

from __future__ import annotations

from typing import NamedTuple

from hwal.cgroup import Kills, available, memory_groups
from hwal.cgroup import kills as count_kills
from hwal.display import size
from hwal.host import Host

RLIMITS = (
    ("Max address space", "VmSize", "RLIMIT_AS, as `ulimit -v` sets it"),
    ("Max data size", "VmData", "RLIMIT_DATA, as `ulimit -d` sets it"),
)
SPARE = 1.25  # times a copy must be free: training takes memory meanwhile


class Limit(NamedTuple):
    """Bytes that a process may take, those in use against it (None: unknown), and whose limit it is."""

    bytes: int
    used: int | None
    name: str

    @property
    def left(self) -> int:
        return self.bytes - (self.used or 0)

    def __str__(self) -> str:
        """`3.9 GiB in use of 4.0 GiB (its cgroup's memory.max)`."""
        return f"{size(self.used)} in use of {size(self.bytes)} ({self.name})"


def limits(host: Host) -> list[Limit]:
    """All limits on the host memory of this process, the one that leaves least first."""
    found = [Limit(group.limit, group.used, f"its cgroup's {group.file}") for group in memory_groups(host)]
    status = _table(host.read("/proc/self/status"))
    for line in (host.read("/proc/self/limits") or "").splitlines():
        for row, counter, name in RLIMITS:
            if line.startswith(row) and (soft := line[len(row) :].split()[0]).isdecimal():
                found.append(Limit(int(soft), status.get(counter), name))
    memory = _table(host.read("/proc/meminfo"))
    if (total := memory.get("MemTotal")) is not None:
        free = memory.get("MemAvailable")
        found.append(Limit(total, None if free is None else total - free, "all that the machine has"))
    return sorted(found, key=lambda limit: limit.left)


def no_room(copy: int, host: Host) -> str | None:
    """What to say where the host has no memory for a copy of that many bytes, of what is to be saved; None where it has."""
    free = available(host)
    if free is None or copy * SPARE <= free:
        return None
    return (
        f"saving: a copy of {copy / 2**30:.1f} GiB would not leave room in the {free / 2**30:.1f} GiB of memory that are "
        "free, so training waits until the checkpoint is written"
    )


def killed(before: Kills, host: Host) -> str | None:
    """What to say of a process that SIGKILL ended since `before`: whose limit made the kernel kill it. None where the kernel
    counts no kill for memory since, or nobody can see the counters."""
    now = count_kills(host)
    groups = list(memory_groups(host))
    in_group = _grew(before.group, now.group)
    if in_group and _grew(before.limit, now.limit) and groups:
        limit, _, file = min(groups)
        return f"was killed by the kernel for memory: its cgroup's limit is {size(limit)} ({file})"
    if in_group or (before.group is None and _grew(before.machine, now.machine)):
        total = _table(host.read("/proc/meminfo")).get("MemTotal")
        return f"was killed by the kernel for memory: all processes of this machine want more than its {size(total)}"
    return None


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


def _table(text: str | None) -> dict[str, int]:
    """`Name: N kB` lines -> bytes."""
    rows = (line.split() for line in (text or "").splitlines())
    return {row[0][:-1]: int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()}
