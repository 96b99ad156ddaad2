"""What the system leaves a process: shared memory, open files, locked memory, CPU time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwal.cgroup import limits as group_limits
from hwal.finding import Finding
from hwal.host import Host

GIB = 1 << 30
SHARED = 1 * GIB  # a rank: what NCCL's buffers between processes and a few DataLoader workers take
FILES = 4096
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": GIB}


def limits(host: Host, processes: int) -> Iterator[Finding]:
    """Findings for a run of `processes` ranks on this machine."""
    size = shared_memory(host)
    if size is not None and size < SHARED * processes:
        yield Finding(
            "error" if size <= 64 << 20 and processes > 1 else "warning",
            "/dev/shm",
            "little shared memory",
            f"{size / GIB:.2g} GiB for {processes} rank{'s' * (processes > 1)}, from /proc/mounts",
            "DataLoader workers die with a bus error, and NCCL cannot make its buffers",
            "docker run --ipc=host or --shm-size=8g …; in Kubernetes an emptyDir of medium Memory at /dev/shm",
        )
    files = _limit(host, "Max open files")
    if files is not None and files < FILES:
        yield Finding(
            "warning",
            "ulimit -n",
            "few open files",
            f"{files}, from /proc/self/limits",
            "many DataLoader workers or shards end in 'Too many open files'",
            f"ulimit -n 65536, or LimitNOFILE= of the service (at least {FILES})",
        )
    locked = _limit(host, "Max locked memory")
    if locked is not None and locked < 64 << 20 and host.names("/sys/class/infiniband"):
        yield Finding(
            "error",
            "ulimit -l",
            "little locked memory beside InfiniBand",
            f"{locked >> 10} KiB, from /proc/self/limits",
            "NCCL cannot register its buffers with the NIC (ibv_reg_mr fails)",
            "ulimit -l unlimited; docker run --ulimit memlock=-1 …",
        )
    quota, cpus = group_limits(host).cpus, len(host.affinity() or ())
    if cpus and cpus < processes and cpus < (host.cpu_count or 0):
        yield Finding(
            "warning",
            "CPU affinity",
            "less than a CPU for each rank",
            f"{cpus} of the machine's {host.cpu_count} CPUs for {processes} ranks, from this process's affinity",
            "devices wait for data and for kernel launches",
            "srun --cpus-per-task=N, mpirun --bind-to none, or taskset: whatever started this shell has bound it",
        )
    if quota is not None and quota < min(processes, cpus or processes):
        yield Finding(
            "warning",
            "CPU quota",
            "less than a CPU for each rank",
            f"{quota:.2g} CPUs' time for {processes} ranks, from the control group",
            "devices wait for data and for kernel launches",
            "raise the container's CPU limit: a rank wants 2 CPUs at least",
        )


def shared_memory(host: Host) -> int | None:
    """Bytes that /dev/shm may take, as its mount says; None where it has the kernel's default, half of memory."""
    for line in (host.read("/proc/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) >= 4 and parts[1] == "/dev/shm":
            found = re.search(r"(?:^|,)size=(\d+)([kmg]?)(?:,|$)", parts[3])
            return int(found[1]) * UNITS[found[2]] if found else None
    return None


def _limit(host: Host, name: str) -> int | None:
    """The soft limit of this process; None where it is unlimited or not known."""
    for line in (host.read("/proc/self/limits") or "").splitlines():
        if line.startswith(name):
            soft = line[len(name) :].split()
            return int(soft[0]) if soft and soft[0].isdigit() else None
    return None
