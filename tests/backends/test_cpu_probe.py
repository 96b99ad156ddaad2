"""The CPU backend under the probe suite, on recorded machines; the table says what each is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hwal_cpu
from hwal.host import Host, RecordedHost
from hwal.testing.hosts import load_all
from hwal.testing.probes import Expected, ProbeSuite, check
from hwal.values import Decision, Plan, Probe, Process

GIB = 1 << 30
GPUS = ("tpu-", "cuda-", "rocm-")
HOSTS = {name: host for name, host in load_all(Path(__file__).parents[1] / "hosts").items() if not name.startswith(GPUS)}
backend = hwal_cpu.backend


def node(
    numa: int | None,
    cores: Iterable[int] | None,
    threads: int | None,
    memory_bytes: int | None,
    arch: str | None,
    fp32: str,
    **native: str,
) -> Mapping[str, Any]:
    """The facts of one device; `native` are the units beside fp32's."""
    return {
        "numa": numa,
        "id": None if numa is None else f"node{numa}",
        "cores": None if cores is None else tuple(cores),
        "threads": threads,
        "memory_bytes": memory_bytes,
        "arch": arch,
        "native": {"fp32": fp32, **native},
    }


SPR = {"fp32": "AVX512", "bf16": "AMX-BF16", "fp16": "AVX512-FP16"}
ZEN4 = {"fp32": "AVX512", "bf16": "AVX512-BF16"}
LIMIT = 96 * GIB  # of epyc-4-nodes, shared by its nodes as their memory is

# host: one row for each device: node, cores, threads, bytes, arch, units; the links' classes; what it must say.
EXPECTED = {
    "sapphire-rapids-2-sockets": Expected(
        (
            node(0, range(16), 16, 131596160 * 1024, "sapphire-rapids", **SPR),
            node(1, range(16, 32), 16, 132089432 * 1024, "sapphire-rapids", **SPR),
        ),
        links=("SYS",),
        says=("32 cores on 2 NUMA nodes, AMX-BF16, 251.5 GiB",),
        silent=("quota", "limit", "may use"),
    ),
    "epyc-zen4-2-cores": Expected(
        (node(0, (0, 1), 2, 24684084 * 1024, "zen4", **ZEN4),),
        says=("2 cores on 1 NUMA node, AVX512-BF16, 23.5 GiB",),
        silent=("quota", "limit", "may use"),
    ),
    "laptop": Expected(
        (node(0, (0, 2, 4, 6, *range(8, 16)), 12, 16098420 * 1024, "alder-lake", "AVX2"),),
        says=("12 cores on 1 NUMA node, AVX2, 15.4 GiB",),
    ),
    "container-quota-v2": Expected(
        (node(0, range(64), 1, 2 * GIB, "zen3", "AVX2"),),
        says=("CPU quota 1.5 of 64 cores: 1 thread", "memory limit 2.0 GiB of 251.6 GiB"),
    ),
    "container-quota-v1": Expected(
        (node(0, range(8), 4, 8 * GIB, "cascade-lake", "AVX512"),),
        says=("CPU quota 4 of 8 cores: 4 threads", "memory limit 8.0 GiB of 94.2 GiB"),
    ),
    "affinity-one-core": Expected(
        (node(0, (3,), 1, 32554180 * 1024, "zen4", **ZEN4),),
        says=("1 core on 1 NUMA node", "this process may use 1 of 16 CPUs"),
    ),
    "graviton3": Expected(
        (node(0, range(8), 8, 15939412 * 1024, "neoverse-v1", "NEON", bf16="NEON-BF16", fp16="NEON-FP16"),),
        says=("8 cores on 1 NUMA node, NEON-BF16, 15.2 GiB",),
    ),
    "memory-only-node": Expected(
        (node(0, range(32), 32, 131001472 * 1024, "sapphire-rapids", **SPR),),
        says=("NUMA node 1 has memory but no CPU", "124.9 GiB"),
    ),
    "no-sysfs": Expected(
        (node(None, range(4), 4, 4 * GIB, "ice-lake-server", "AVX512"),),
        says=("4 cores, AVX512, 4.0 GiB",),
        silent=("NUMA",),
    ),
    "chroot-without-sys": Expected(
        (node(None, range(4), 4, 16313508 * 1024, "skylake", "AVX2"),),
        says=("4 cores, AVX2, 15.6 GiB",),
        silent=("NUMA",),
    ),
    "epyc-4-nodes": Expected(
        tuple(
            node(i, (4 * i, 4 * i + 1), 2, LIMIT * kib // 197850752, "zen4", **ZEN4)
            for i, kib in enumerate((49283072, 49545216, 49545216, 49477248))
        ),
        links=("NODE",) * 6,
        says=("8 cores on 4 NUMA nodes", "this process may use 8 of 16 CPUs", "memory limit 96.0 GiB of 188.7 GiB"),
    ),
    "m3-max": Expected(
        (node(None, None, 16, 64 * GIB, "apple-m3", "NEON"),),
        says=("16 cores, NEON, 64.0 GiB", "BF16 instructions, but torch does not use them on macOS"),
    ),
    "intel-mac": Expected((node(None, None, 8, 32 * GIB, None, "AVX2"),), says=("8 cores, AVX2, 32.0 GiB",), silent=("BF16",)),
    "windows": Expected((node(None, None, None, None, None, "SSE"),), says=("24 logical CPUs; cores and memory are not read",)),
}


class TestCpuProbe(ProbeSuite):
    backend = hwal_cpu.backend
    hosts: ClassVar = {name: (host, EXPECTED[name]) for name, host in HOSTS.items()}


def test_every_recorded_host_is_in_the_table() -> None:
    assert set(HOSTS) == set(EXPECTED)


def changed(name: str, files: Mapping[str, str | None] | None = None, **fields: Any) -> Probe:
    """The probe of a recorded host with other files (None: gone) or other facts."""
    recording = replace(HOSTS[name].recording, **fields)
    merged = {**recording.files, **(files or {})}
    return backend.probe(RecordedHost(replace(recording, files={k: v for k, v in merged.items() if v is not None})))


# cores, affinity, nodes


def test_affinity_that_cuts_across_nodes() -> None:
    """Cores 15 and 16 stand on different sockets; 47 is 15's second thread; 33 is the second thread of a core not given."""
    probe = changed("sapphire-rapids-2-sockets", affinity=(15, 16, 33, 47), files=_siblings((15, 47), (16, 48), (1, 33)))
    assert [(device.id, device.cores, device.threads) for device in probe.devices] == [
        ("node0", (15, 33), 2),
        ("node1", (16,), 1),
    ]
    assert probe.notes[0] == "this process may use 4 of 64 CPUs"


def _siblings(*groups: tuple[int, ...]) -> dict[str, str]:
    text = {cpu: ",".join(map(str, group)) for group in groups for cpu in group}
    files = {f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": value for cpu, value in text.items()}
    return {**files, "/sys/devices/system/cpu/cpu15/topology/physical_package_id": "0"}


def test_affinity_on_one_socket_leaves_one_device() -> None:
    probe = changed("sapphire-rapids-2-sockets", affinity=tuple(range(16, 32)))
    (device,) = probe.devices
    assert (device.index, device.id, device.memory_bytes) == (0, "node1", 132089432 * 1024)
    assert probe.links == ()


def test_offline_cpus_are_not_counted() -> None:
    """CPUs 1 and 9 of the desktop were taken offline: the node's list has gaps, and affinity follows it."""
    online = tuple(cpu for cpu in range(16) if cpu not in (1, 9))
    files = {"/sys/devices/system/node/node0/cpulist": "0,2-8,10-15\n", **_siblings(*((c, c + 8) for c in range(8) if c != 1))}
    probe = changed("affinity-one-core", affinity=online, cpu_count=14, files=files)
    assert probe.devices[0].cores == (0, 2, 3, 4, 5, 6, 7)
    assert probe.notes == ()


def test_nodes_that_do_not_add_up_are_unknown() -> None:
    """A CPU that no node owns: better one device without a node than a core lost."""
    probe = changed("sapphire-rapids-2-sockets", files={"/sys/devices/system/node/node1/cpulist": "16-30,48-62\n"})
    (device,) = probe.devices
    assert (device.numa, device.id, device.threads, device.memory_bytes) == (None, None, 32, 263685592 * 1024)


def test_sockets_that_firmware_does_not_tell_leave_the_link_unknown() -> None:
    probe = changed("sapphire-rapids-2-sockets", files={"/sys/devices/system/cpu/cpu16/topology/physical_package_id": "-1\n"})
    assert [(link.class_, link.source) for link in probe.links] == [("", "guess")]


def test_cores_are_a_guess_when_nothing_tells_them() -> None:
    device = changed("laptop", files={"/sys/devices/system/cpu/cpu8/topology/thread_siblings_list": None}).devices[0]
    assert (device.threads, device.sources["cores"]) == (16, "guess")


def test_siblings_that_leave_out_the_cpu_itself_are_garbled() -> None:
    """Believing them would lose core 2."""
    device = changed("graviton3", files={"/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "2\n"}).devices[0]
    assert (device.cores, device.sources["cores"]) == (tuple(range(8)), "guess")


@pytest.mark.parametrize("garbled", ["5-2\n", "0-\n", "x\n", "0-7,\n", None])
def test_a_node_whose_cpus_are_unknown_is_not_called_one_without_cpus(garbled: str | None) -> None:
    files = {"/sys/devices/system/node/node1/cpulist": garbled, "/sys/devices/system/node/node1/meminfo": "x"}
    assert changed("graviton3", files=files).notes == ()


# quotas and limits


@pytest.mark.parametrize(
    ("quota", "threads", "note"),
    [
        ("max 100000", (16, 16), None),
        ("3200000 100000", (16, 16), None),
        ("4000000 100000", (16, 16), None),
        ("800000 100000", (4, 4), "CPU quota 8 of 32 cores: 8 threads"),
        ("330000 100000", (1, 1), "CPU quota 3.3 of 32 cores: 2 threads"),
        ("1000 100000", (1, 1), "CPU quota 0.01 of 32 cores: 2 threads"),
        ("800000", (16, 16), None),
        ("0 0", (16, 16), None),
        ("nan nan", (16, 16), None),
    ],
)
def test_a_quota_is_shared_by_the_nodes(quota: str, threads: tuple[int, ...], note: str | None) -> None:
    probe = changed("sapphire-rapids-2-sockets", files={"/sys/fs/cgroup/user.slice/cpu.max": quota})
    assert tuple(device.threads for device in probe.devices) == threads
    assert probe.notes == (() if note is None else (note,))


def test_the_tightest_group_wins() -> None:
    """The slice allows more than the session, the root (seen in a namespace) less than both."""
    files = {
        "/sys/fs/cgroup/user.slice/cpu.max": "2000000 100000",
        "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "1200000 100000",
        "/sys/fs/cgroup/cpu.max": "100000 25000",
        "/sys/fs/cgroup/user.slice/memory.max": str(200 * GIB),
        "/sys/fs/cgroup/user.slice/user-1000.slice/memory.max": str(100 * GIB),
    }
    probe = changed("sapphire-rapids-2-sockets", files=files)
    assert [device.threads for device in probe.devices] == [2, 2]
    assert {device.sources["threads"] for device in probe.devices} == {"cgroup"}
    sizes = [device.memory_bytes or 0 for device in probe.devices]
    assert sizes[0] < sizes[1] and 100 * GIB - 2 < sum(sizes) <= 100 * GIB


@pytest.mark.parametrize(
    "groups",
    ["0::/../../elsewhere\n", "0::/kubepods/pod1/abc\n", "", None],
    ids=["outside the namespace", "the host's path", "empty", "no file"],
)
def test_a_container_sees_its_limits_at_the_mounts_root(groups: str | None) -> None:
    probe = changed("container-quota-v2", files={"/proc/self/cgroup": groups})
    assert (probe.devices[0].threads, probe.devices[0].memory_bytes) == (1, 2 * GIB)


def test_version_1_without_cpuacct() -> None:
    files = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n", "/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": f"{GIB}\n"}
    device = changed("epyc-zen4-2-cores", files=files).devices[0]
    assert (device.threads, device.memory_bytes) == (1, GIB)


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: 0 kB\n", "MemTotal: many kB\n", "MemTotal: 8\n"])
def test_unknown_memory_is_none_and_a_limit_is_then_all_that_is_known(meminfo: str | None) -> None:
    files = {"/proc/meminfo": meminfo}
    unlimited = changed("epyc-zen4-2-cores", files=files)  # version 1's "no limit" is a number, and no size
    assert unlimited.devices[0].memory_bytes is None
    assert (unlimited.reason, unlimited.notes) == ("2 cores on 1 NUMA node, AVX512-BF16", ())
    limited = changed("container-quota-v2", files=files)
    assert (limited.devices[0].memory_bytes, limited.devices[0].sources["memory_bytes"]) == (2 * GIB, "cgroup")
    assert limited.notes[-1] == "memory limit 2.0 GiB"


# units


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16"),
    [
        ("avx512f avx512_bf16", "AVX512-BF16", None),
        ("avx512f amx_bf16 avx512_bf16", "AVX512-BF16", None),  # tiles switched off by the hypervisor
        ("avx512f amx_tile amx_bf16 avx512_bf16 avx512_fp16", "AMX-BF16", "AVX512-FP16"),
        ("avx512f amx_tile amx_bf16 amx_fp16 avx512_fp16", "AMX-BF16", "AMX-FP16"),  # Granite Rapids
        ("avx512f avx512_vnni", None, None),
        ("avx2 avx_vnni f16c", None, None),
    ],
)
def test_units(flags: str, bf16: str | None, fp16: str | None) -> None:
    native = changed("no-sysfs", files={"/proc/cpuinfo": f"processor\t: 0\nflags\t\t: sse2 {flags}\n\n"}).devices[0].native
    assert (native.get("bf16"), native.get("fp16")) == (bf16, fp16)


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "arch"),
    [
        ("GenuineIntel", 6, 0x55, 4, "skylake-server"),
        ("GenuineIntel", 6, 0x55, 7, "cascade-lake"),
        ("GenuineIntel", 6, 0x55, 11, "cooper-lake"),
        ("GenuineIntel", 6, 0xCF, 2, "emerald-rapids"),
        ("GenuineIntel", 6, 0xAD, 1, "granite-rapids"),
        ("GenuineIntel", 6, 1, 0, None),
        ("GenuineIntel", 19, 0x8F, 0, None),
        ("AuthenticAMD", 0x17, 0x31, 0, "zen2"),
        ("AuthenticAMD", 0x19, 0x01, 1, "zen3"),
        ("AuthenticAMD", 0x19, 0xA0, 1, "zen4"),
        ("AuthenticAMD", 0x1A, 0x02, 1, "zen5"),
        ("AuthenticAMD", 0x42, 0x02, 1, None),
    ],
)
def test_arch(vendor: str, family: int, model: int, stepping: int, arch: str | None) -> None:
    text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nstepping\t: {stepping}\n\n"
    assert changed("no-sysfs", files={"/proc/cpuinfo": text}).devices[0].arch == arch


# robustness


@given(st.data())
def test_any_text_in_any_file_is_at_worst_unknown(data: st.DataObject) -> None:
    """Whatever a file holds, the probe stays ready, and no core of the affinity mask is given out twice."""
    name = data.draw(st.sampled_from(sorted(HOSTS)))
    recording = HOSTS[name].recording
    paths = data.draw(st.lists(st.sampled_from(sorted(recording.files) or ["/proc/cpuinfo"]), max_size=4, unique=True))
    numbers = st.integers().map(str) | st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,2})*\n", fullmatch=True)
    texts = {path: data.draw(st.text(max_size=80) | numbers) for path in paths}
    probe = changed(name, files=texts)
    check(backend, probe)
    assert probe.state == "ready"
    cores = [core for device in probe.devices for core in device.cores or ()]
    assert len(cores) == len(set(cores)) and set(cores) <= set(recording.affinity or ())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity masks")
def test_the_live_machine_follows_its_affinity_mask() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        probe = backend.probe(Host())
    finally:
        os.sched_setaffinity(0, before)
    (device,) = probe.devices
    assert (device.cores, device.threads) == ((min(before),), 1)
    assert len(before) == 1 or any("this process may use 1 of" in note for note in probe.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures are read here once more, another way")
def test_the_live_machine_has_the_memory_that_the_kernel_says() -> None:
    sizes = [device.memory_bytes for device in backend.probe(Host()).devices]
    assert all(sizes)
    assert sum(filter(None, sizes)) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# the environment of ranks


@pytest.mark.parametrize(
    ("threads", "environment"),
    [((4,), {"OMP_NUM_THREADS": "4"}), ((2, 2), {"OMP_NUM_THREADS": "2"}), ((2, 3), {}), ((None,), {}), ((2, None), {})],
)
def test_environment(threads: tuple[int | None, ...], environment: dict[str, str]) -> None:
    devices = backend.probe(HOSTS["sapphire-rapids-2-sockets"]).devices[: len(threads)]
    processes = tuple(Process(i, (i,), device.cores, threads[i]) for i, device in enumerate(devices))
    fp32 = Decision("fp32", "test")
    plan = Plan("cpu", Decision("torch", "test"), devices, processes, {"dp": len(devices)}, fp32, Decision("auto", "test"))
    assert backend.environment(plan) == {"ACCELERATE_USE_CPU": "true", **environment}
