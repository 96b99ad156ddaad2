"""Processes, devices, cores and threads (P7)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.errors import DeviceError, PlanError
from hwal.plan import make_plan
from hwal.plan.processes import lay_out
from hwal.topology import Device
from hwal.values import Caps, Choice, Decision, Plan, Request, Target

TORCH = Decision("torch", "a test")
SHARED = Caps(frameworks=("torch",), collectives="gloo", shares_devices=True)
OWN = Caps(frameworks=("torch",), collectives="nccl")
ALONE = Caps(frameworks=("torch",))


def device(index: int = 0, cores: tuple[int, ...] | None = None, threads: int | None = None) -> Device:
    return Device("toy", index, name="Toy", cores=cores, threads=threads)


def plan(devices: list[Device], caps: Caps = SHARED, n: int | None = None, spec: str | None = None, nodes: int = 1) -> Plan:
    choice = Choice(Target("toy", spec), "toy", tuple(devices), "a test")
    return make_plan(choice, caps, Request(target=Target("toy", spec), processes=n), TORCH, nodes)


def rows(made: Plan) -> list[tuple[tuple[int, ...], tuple[int, ...] | None, int | None]]:
    return [(process.devices, process.cores, process.threads) for process in made.processes]


def test_one_process_alone_keeps_the_affinity_it_inherits() -> None:
    assert rows(plan([device(0, (0, 1), 2)])) == [((0,), None, 2)]


def test_a_quota_cuts_the_threads_of_a_lone_process() -> None:
    assert rows(plan([device(0, (0, 1, 2, 3), 1)])) == [((0,), None, 1)]


def test_one_process_a_numa_node_each_on_its_own_cores() -> None:
    assert rows(plan([device(0, (0, 1), 2), device(1, (2, 3), 2)])) == [((0,), (0, 1), 2), ((1,), (2, 3), 2)]


def test_processes_share_a_device_and_split_its_cores() -> None:
    assert rows(plan([device(0, (0, 1, 2, 3, 4), 5)], n=2)) == [((0,), (0, 1), 2), ((0,), (2, 3, 4), 2)]


def test_several_processes_fill_nodes_in_order() -> None:
    made = plan([device(0, (0, 1, 2, 3), 4), device(1, (4, 5, 6, 7), 4)], n=4)
    assert rows(made) == [((0,), (0, 1), 2), ((0,), (2, 3), 2), ((1,), (4, 5), 2), ((1,), (6, 7), 2)]
    assert dict(made.mesh) == {"dp": 4}


def test_the_quota_is_shared_too() -> None:
    assert rows(plan([device(0, tuple(range(8)), 4)], n=2)) == [
        ((0,), (0, 1, 2, 3), 2),
        ((0,), (4, 5, 6, 7), 2),
    ]


def test_more_processes_than_cores_is_told() -> None:
    made = plan([device(0, (0, 1), 2)], n=4)
    assert rows(made) == [((0,), (0,), 1), ((0,), (0,), 1), ((0,), (1,), 1), ((0,), (1,), 1)]
    assert made.notes == ("oversubscribed: 4 processes on 2 core(s) take turns, which can be several times slower; -n 2 fits",)


def test_more_processes_than_quota_is_told() -> None:
    made = plan([device(0, (0, 1), 1)], n=2)
    assert rows(made) == [((0,), (0,), 1), ((0,), (1,), 1)]
    assert made.notes == (
        "oversubscribed: 2 processes on 1 core(s)' worth of CPU quota take turns, which can be several times slower; -n 1 fits",
    )


SPMD = Caps(frameworks=("torch",), collectives="gloo", sharding=True, spmd=True)


def test_one_process_drives_all_devices() -> None:
    for n in (None, 1):
        made = plan([device(index) for index in range(4)], SPMD, n, nodes=2)
        assert rows(made) == [((0, 1, 2, 3), None, None)]
        assert (dict(made.mesh), made.world_size, made.strategy.value) == ({"dp": 8}, 2, "auto")
    assert plan([device()], SPMD).strategy == Decision("single", "one device")


def test_a_process_a_device_only_when_asked_for() -> None:
    made = plan([device(index) for index in range(4)], SPMD, 4)
    assert rows(made) == [((index,), None, None) for index in range(4)]
    with pytest.raises(PlanError) as caught:
        plan([device(index) for index in range(4)], SPMD, 2)
    assert str(caught.value) == (
        "2 processes for 4 toy devices: there is one for all of them, or one for each\n"
        "  where: -n 2 --device toy\n"
        "  try:   leave -n out: one process drives all devices; or -n 4"
    )


def test_unknown_cores_stay_unknown() -> None:
    assert rows(plan([device(0, None, 8)], n=2)) == [((0,), None, 4), ((0,), None, 4)]
    assert rows(plan([device(0)])) == [((0,), None, None)]


def test_accelerators_on_one_numa_node_split_its_cores() -> None:
    beside = [device(i, (0, 1, 2, 3), 4) for i in range(2)] + [device(i, (4, 5, 6, 7), 4) for i in (2, 3)]
    assert rows(plan(beside, OWN)) == [((0,), (0, 1), 2), ((1,), (2, 3), 2), ((2,), (4, 5), 2), ((3,), (6, 7), 2)]


def test_overlapping_cores_are_given_once() -> None:
    assert rows(plan([device(0, (0, 1, 2, 3), 4), device(1, (2, 3), 2)], OWN)) == [((0,), (0, 1), 2), ((1,), (2, 3), 2)]


def test_overlap_that_cannot_be_resolved_is_told() -> None:
    made = plan([device(0, (0,), 1), device(1, (0, 1), 2), device(2, (1,), 1)], OWN)
    assert made.notes == ("oversubscribed: 3 processes beside the same 2 core(s) take turns",)


def test_fewer_processes_than_devices_take_the_first() -> None:
    made = plan([device(i, (i,), 1) for i in range(3)], OWN, n=2)
    assert rows(made) == [((0,), (0,), 1), ((1,), (1,), 1)]
    assert [d.index for d in made.devices] == [0, 1]
    assert made.notes == ("2 of 3 devices used, because of -n 2; idle: toy 2",)


def test_a_named_part_of_the_cores_is_kept_to() -> None:
    assert rows(plan([device(1, (2, 3), 2)], spec="1")) == [((1,), (2, 3), 2)]
    assert rows(plan([device(0, (0, 1), 2), device(1, (2, 3), 2)], n=1)) == [((0,), (0, 1), 2)]
    assert rows(plan([device(1, (2, 3), 2)], OWN, spec="1")) == [((1,), None, 2)]


def test_nodes_multiply_the_world() -> None:
    made = plan([device(0, (0, 1), 2)], n=2, nodes=3)
    assert (made.world_size, made.local_size, dict(made.mesh)) == (6, 2, {"dp": 6})


def test_more_processes_than_devices_shows_both_numbers() -> None:
    with pytest.raises(PlanError) as caught:
        plan([device(0), device(1)], OWN, n=3, spec="0,1")
    assert str(caught.value) == (
        "3 processes need 3 devices, 2 chosen (3 > 2)\n"
        "  where: -n 3 --device toy:0,1\n"
        "  why:   processes of toy do not share a device\n"
        "  try:   -n 2, or --device toy for all there are"
    )
    with pytest.raises(PlanError) as caught:
        plan([device(0)], OWN, n=8)
    assert "srun --gpus-per-task" in str(caught.value), "each rank of such a step sees one device, and takes it for all"


def test_a_device_for_one_process() -> None:
    with pytest.raises(DeviceError) as caught:
        plan([device(0)], ALONE, n=2)
    assert str(caught.value) == (
        "toy trains in one process only, 2 were asked for\n"
        "  where: -n 2\n"
        "  why:   its ranks would have nothing to talk to each other through\n"
        "  try:   -n 1"
    )
    with pytest.raises(DeviceError, match="2 nodes × 1 processes"):
        plan([device(0)], ALONE, n=1, nodes=2)
    made = plan([device(0), device(1)], ALONE)
    assert (made.world_size, made.notes) == (1, ("1 of 2 devices used: toy trains in one process only",))


@st.composite
def machines(draw: st.DrawFn) -> list[Device]:
    """Devices with disjoint cores, as NUMA nodes have, or cores in common, as accelerators beside one node have."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    ids = iter(draw(st.permutations(range(sum(sizes)))))
    nodes = [tuple(sorted(next(ids) for _ in range(size))) for size in sizes]
    beside = draw(st.lists(st.sampled_from(nodes), max_size=3))
    return [
        device(index, cores, draw(st.one_of(st.none(), st.integers(1, len(cores)))))
        for index, cores in enumerate(nodes + beside)
    ]


@given(machines(), st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 3))
def test_any_plan(devices: list[Device], n: int | None, nodes: int) -> None:
    made = plan(devices, SHARED, n, nodes=nodes)
    by_index = {d.index: d for d in devices}
    assert made.local_size == (n or len(devices))
    assert [process.local_rank for process in made.processes] == list(range(made.local_size))
    assert made.mesh["dp"] == made.world_size == nodes * made.local_size
    assert Plan.from_json(made.to_json()) == made
    used = [process.devices[0] for process in made.processes]
    assert used == sorted(used), "ranks fill devices in order"
    counts = [used.count(d.index) for d in made.devices]
    assert max(counts) - min(counts) <= 1
    seen: set[int] = set()
    crowded = any(note.startswith("oversubscribed") for note in made.notes)
    for process in made.processes:
        beside = by_index[process.devices[0]]
        assert process.threads is not None and process.threads >= 1
        if process.cores is None:
            assert made.local_size == 1
            continue
        assert process.cores and set(process.cores) <= set(beside.cores or ())
        assert process.threads <= len(process.cores)
        assert crowded or not seen & set(process.cores)
        seen |= set(process.cores)
    for d in made.devices:
        threads = sum(p.threads or 0 for p in made.processes if by_index[p.devices[0]].cores == d.cores)
        if d.threads is not None and not crowded:
            most = max(by_index[p.devices[0]].threads or 99 for p in made.processes if by_index[p.devices[0]].cores == d.cores)
            assert threads <= most


def test_splits_by_brute_force() -> None:
    """Every small case: all cores are used, parts differ by at most one core, and come in order."""
    for cores, quota, n in product(range(1, 7), range(1, 7), range(2, 7)):
        if quota > cores:
            continue
        made = plan([device(0, tuple(range(cores)), quota)], n=n)
        parts = [process.cores or () for process in made.processes]
        sizes = [len(part) for part in parts]
        assert all(
            process.threads == max(1, min(len(part), quota // n)) for process, part in zip(made.processes, parts, strict=True)
        )
        assert bool(made.notes) == (n > quota)
        if n <= cores:
            assert [core for part in parts for core in part] == list(range(cores))
            assert max(sizes) - min(sizes) <= 1
        else:
            assert sizes == [1] * n and parts == sorted(parts)


def test_a_number_of_processes_that_would_bring_the_machine_down_is_refused() -> None:
    devices = (Device("cpu", 0, cores=(0, 1), threads=2),)
    choice = Choice(Target("cpu"), "cpu", devices, "test")
    caps = Caps(("torch",), "gloo", shares_devices=True)
    assert len(lay_out(choice, caps, 32).processes) == 32
    with pytest.raises(PlanError, match="33 processes are too many for this machine: at most 16 a core, 32 in all"):
        lay_out(choice, caps, 33)
