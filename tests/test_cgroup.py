"""Memory that a process may still take."""

from __future__ import annotations

import pytest

from hwal.cgroup import available
from hwal.host import Host, RecordedHost, Recording

GIB = 1 << 30
MEMINFO = {"/proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {16 << 20} kB\n"}


def group(folder: str, limit: str, used: int, cached: int, version: int) -> dict[str, str]:
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return {
        f"{folder}/{names[0]}": f"{limit}\n",
        f"{folder}/{names[1]}": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\n{names[2]} {cached}\n",
    }


V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"
JOB2 = {"/proc/self/cgroup": "0::/job/one\n"}
JOB1 = {"/proc/self/cgroup": "4:memory:/job\n"}

CASES: dict[str, tuple[dict[str, str], int | None]] = {
    "nobody says": ({}, None),
    "the kernel alone": (MEMINFO, 16 * GIB),
    "version 2": ({**MEMINFO, **JOB2, **group(f"{V2}/job/one", str(8 * GIB), 5 * GIB, GIB, 2)}, 4 * GIB),
    "a parent is tighter": (
        {
            **MEMINFO,
            **JOB2,
            **group(f"{V2}/job/one", str(8 * GIB), GIB, 0, 2),
            **group(f"{V2}/job", str(9 * GIB), 8 * GIB, GIB // 2, 2),
        },
        GIB + GIB // 2,
    ),
    "without a limit": ({**MEMINFO, **JOB2, **group(f"{V2}/job/one", "max", 5 * GIB, GIB, 2)}, 16 * GIB),
    "the kernel is tighter": ({**MEMINFO, **JOB2, **group(f"{V2}/job/one", str(80 * GIB), GIB, 0, 2)}, 16 * GIB),
    "version 1": ({**JOB1, **group(f"{V1}/job", str(4 * GIB), 3 * GIB, GIB // 4, 1)}, GIB + GIB // 4),
    "more than there is": ({**JOB1, **group(f"{V1}/job", str(4 * GIB), 5 * GIB, 0, 1)}, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_available(case: str) -> None:
    files, expected = CASES[case]
    assert available(RecordedHost(Recording(files=files))) == expected


def test_of_this_machine() -> None:
    free = available(Host())
    assert free is None or free > 0
