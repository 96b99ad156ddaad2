"""Whose limit a process is under, and whether the kernel killed it for memory."""

from __future__ import annotations

import pytest

from hwal.cgroup import Kills, kills
from hwal.host import Host, RecordedHost, Recording
from hwal.shortage import killed, limits

GIB = 1 << 30
MACHINE = {"/proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {16 << 20} kB\n", "/proc/vmstat": "oom_kill 7\n"}
V1, V2 = "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/job/one"
IN_V1 = {"/proc/self/cgroup": "4:memory:/job\n0::/\n", f"{V1}/memory.limit_in_bytes": f"{4 * GIB}\n"}
IN_V2 = {"/proc/self/cgroup": "0::/job/one\n", f"{V2}/memory.max": f"{4 * GIB}\n"}


def host(*files: dict[str, str]) -> RecordedHost:
    return RecordedHost(Recording(files={name: text for some in files for name, text in some.items()}))


def v1(killed: int, reached: int) -> dict[str, str]:
    return {
        **IN_V1,
        f"{V1}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n",
        f"{V1}/memory.failcnt": f"{reached}\n",
    }


def v2(killed: int, reached: int) -> dict[str, str]:
    return {**IN_V2, f"{V2}/memory.events": f"low 0\nhigh 0\nmax 9\noom {reached}\noom_kill {killed}\noom_group_kill 0\n"}


@pytest.mark.parametrize(("group", "file"), [(v1, f"{V1}/memory.limit_in_bytes"), (v2, f"{V2}/memory.max")])
def test_killed_at_its_groups_limit(group: object, file: str) -> None:
    make = v1 if group is v1 else v2
    before = kills(host(MACHINE, make(2, 5)))
    assert before == Kills(2, 7, 5)
    assert killed(before, host(MACHINE, make(3, 6))) == (
        f"was killed by the kernel for memory: its cgroup's limit is 4.0 GiB ({file})"
    )
    assert killed(before, host(MACHINE, make(2, 6))) is None  # reached, and nobody was killed
    assert killed(before, host(MACHINE, make(3, 5))) == (
        "was killed by the kernel for memory: all processes of this machine want more than its 64.0 GiB"
    )


def test_killed_where_groups_count_nothing() -> None:
    before = kills(host(MACHINE))
    assert before == Kills(None, 7, None)
    later = host(MACHINE, {"/proc/vmstat": "nr_free_pages 1\noom_kill 8\n"})
    assert killed(before, later) == (
        "was killed by the kernel for memory: all processes of this machine want more than its 64.0 GiB"
    )
    assert killed(before, host(MACHINE)) is None
    assert killed(Kills(), host()) is None


def test_the_machines_other_kills_are_not_ones_own() -> None:
    before = kills(host(MACHINE, v2(2, 5)))
    assert killed(before, host({**MACHINE, "/proc/vmstat": "oom_kill 9\n"}, v2(2, 5))) is None


def test_the_tightest_limit_comes_first() -> None:
    used = {f"{V2}/memory.current": f"{3 * GIB}\n", f"{V2}/memory.stat": "anon 1\ninactive_file 0\n"}
    rlimits = {
        "/proc/self/limits": (
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            f"Max data size             unlimited            unlimited            bytes     \n"
            f"Max address space         {2 * GIB}           unlimited            bytes     \n"
        ),
        "/proc/self/status": f"Name:\tpython\nVmSize:\t{3 << 19} kB\nVmData:\t 12 kB\n",
    }
    assert list(map(str, limits(host(MACHINE, v2(0, 0), used, rlimits)))) == [
        "1.5 GiB in use of 2.0 GiB (RLIMIT_AS, as `ulimit -v` sets it)",
        f"3.0 GiB in use of 4.0 GiB (its cgroup's {V2}/memory.max)",
        "48.0 GiB in use of 64.0 GiB (all that the machine has)",
    ]
    assert limits(host()) == []


def test_of_this_machine() -> None:
    assert all(limit.bytes > 0 for limit in limits(Host()))
