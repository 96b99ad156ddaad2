"""Target, Plan, Machine, Caps …: the rules that go beyond their types."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.errors import PlanError, RecordError, TargetError, UsageError
from hwal.topology import Device, Link
from hwal.values import AUTO, Choice, Decision, HostFacts, Machine, PassedOver, Plan, Probe, Process, Target, World
from tests.strategies import of, plans

KNOWN = ("cpu", "cuda", "mps", "null", "tpu", "hwal_9")
SPECS = st.text(min_size=1, max_size=12).map(str.strip).filter(bool)


# Target


@pytest.mark.parametrize(
    ("text", "backend", "spec"),
    [
        ("auto", "auto", None),
        ("cuda:0,2", "cuda", "0,2"),
        ("cuda:GPU-8f2e", "cuda", "GPU-8f2e"),
        ("tpu:v5e-8", "tpu", "v5e-8"),
        ("tpu:cpu", "tpu", "cpu"),
        ("null:8", "null", "8"),
        ("  CPU : 1 ", "cpu", "1"),
        ("cuda:a:b", "cuda", "a:b"),
    ],
)
def test_target(text: str, backend: str, spec: str | None) -> None:
    assert Target.parse(text, KNOWN) == Target(backend, spec)


@given(backend=st.sampled_from(KNOWN), spec=st.none() | SPECS)
def test_target_prints_what_it_parses(backend: str, spec: str | None) -> None:
    target = Target(backend, spec)
    assert Target.parse(str(target), KNOWN) == target


@given(text=st.text() | st.builds("{}:{}".format, st.sampled_from([*KNOWN, AUTO]), st.text()))
def test_any_text_is_a_target_or_a_target_error(text: str) -> None:
    try:
        target = Target.parse(text, KNOWN)
    except TargetError as error:
        assert error.where == f"--device {text}"
        assert error.exit_code == 2
    else:
        assert target.backend in (AUTO, *KNOWN)
        assert target.spec is None or target.spec == target.spec.strip() != ""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("cdua", "did you mean cuda?"),
        ("cuda0", "did you mean cuda?"),
        ("gpu", "did you mean cuda (NVIDIA) or rocm (AMD)?"),
        ("nvidia:0", "did you mean cuda?"),
        ("xla", "did you mean tpu?"),
        ("zzzzzz", None),
        ("cpu:", "--device cpu"),
        ("auto:1", "--device auto, or name the backend: cpu:0"),
    ],
)
def test_target_did_you_mean(text: str, hint: str | None) -> None:
    with pytest.raises(TargetError) as caught:
        Target.parse(text, KNOWN)
    assert caught.value.hint == hint


@given(name=st.sampled_from(KNOWN), at=st.integers(0, 3))
def test_one_letter_missing_is_still_understood(name: str, at: int) -> None:
    short = name[: at % len(name)] + name[at % len(name) + 1 :]
    with pytest.raises(TargetError) as caught:
        Target.parse(short, KNOWN)
    if short[0].isalpha():
        assert caught.value.hint is not None


# Plan


def plan(**changes: object) -> Plan:
    because = Decision("x", "a test")
    values = {
        "backend": "cpu",
        "framework": because,
        "devices": (Device("cpu", 0),),
        "processes": (Process(0, (0,)), Process(1, (0,))),
        "mesh": {"dp": 2},
        "precision": because,
        "strategy": because,
    }
    return Plan(**{**values, **changes})  # type: ignore[arg-type]


@given(value=plans(), axis=st.sampled_from(["dp", "fsdp", "tp", "pp", "cp"]), factor=st.integers(2, 4))
def test_a_mesh_that_does_not_fill_the_world_is_refused_with_the_equation(value: Plan, axis: str, factor: int) -> None:
    wrong = {**value.mesh, axis: value.mesh.get(axis, 1) * factor}
    with pytest.raises(PlanError, match=rf"{axis} {wrong[axis]}.* = \d+, devices in use = \d+"):
        dataclasses.replace(value, mesh=wrong)
    with pytest.raises(PlanError):
        Plan.from_dict({**value.to_dict(), "mesh": wrong})


def test_world_size_counts_processes_and_the_mesh_devices() -> None:
    value = plan(processes=(Process(0, (0, 1)), Process(1, (2, 3))), mesh={"dp": 2, "tp": 4}, nodes=2)
    assert (value.local_size, value.world_size) == (2, 4)


def test_an_unknown_axis_names_the_nearest() -> None:
    with pytest.raises(PlanError, match="unknown mesh axis 'fdsp'") as caught:
        plan(mesh={"fdsp": 2})
    assert caught.value.hint == "did you mean 'fsdp'?"


@pytest.mark.parametrize("degree", [0, -2])
def test_a_degree_is_one_or_more(degree: int) -> None:
    with pytest.raises(PlanError, match=f"dp = {degree}"):
        plan(mesh={"dp": degree})


# Machine: what other programs read


def machine() -> Machine:
    devices = tuple(Device("null", index, f"imaginary {index}", f"null{index}", 1 << 30, 0) for index in range(3))
    links = tuple(Link(a, b, "NV4", 25e9, True, "table", "null") for a, b in ((0, 1), (0, 2), (1, 2)))
    ready = Probe("null", "ready", "HWAL_NULL_DEVICES=3", None, 0.1, devices, links)
    blocked = Probe("toy", "blocked", "its import failed", "pip uninstall toy", 0.2)
    choice = Choice(Target("null"), "null", devices, "asked for", (PassedOver("toy", "blocked"),))
    return Machine(HostFacts("box", "linux", "x86_64"), (ready, blocked), choice)


def test_the_json_contract_of_hwal_devices() -> None:
    document = json.loads(machine().to_json())
    assert set(document) == {"host", "probes", "choice", "devices", "links"}
    assert set(document["host"]) == {"name", "system", "machine"}
    assert set(document["probes"][0]) == {"backend", "state", "reason", "hint", "ms", "notes", "unfit"}
    assert set(document["choice"]) == {"target", "backend", "devices", "why", "passed_over"}
    assert set(document["choice"]["passed_over"][0]) == {"backend", "why"}
    assert {"backend", "index", "name", "id", "memory_bytes", "numa"} < set(document["devices"][0])
    assert set(document["links"][0]) == {
        "a",
        "b",
        "class",
        "bandwidth",
        "p2p",
        "source",
        "backend",
        "count",
        "distance",
        "path",
    }
    assert [(link["a"], link["b"]) for link in document["links"]] == [(0, 1), (0, 2), (1, 2)]
    assert len(document["devices"]) == 3


@given(value=of(Machine))
def test_a_machines_topology_is_its_probes(value: Machine) -> None:
    again = Machine.from_json(value.to_json())
    assert again.topology == value.topology
    for probe in value.probes:
        assert again.topology.of(probe.backend) == probe.devices


def test_devices_go_to_the_ready_probe_of_a_name_that_two_packages_claim() -> None:
    clash = Probe("null", "blocked", "toy offers a backend named 'null'")
    for probes in ((*machine().probes, clash), (clash, *machine().probes)):
        value = dataclasses.replace(machine(), probes=probes)
        assert Machine.from_json(value.to_json()) == value


def test_a_device_that_no_probe_answers_for_is_refused() -> None:
    document = machine().to_dict()
    document["devices"][1]["backend"] = "cuda"
    with pytest.raises(RecordError, match="no probe is of backend 'cuda'") as caught:
        Machine.from_dict(document, "FILE")
    assert caught.value.where == "FILE.devices[1]"


@pytest.mark.parametrize("document", ["[]", "{}", '{"probes": {}}', "1"])
def test_another_programs_json_is_refused_in_words(document: str) -> None:
    with pytest.raises(UsageError, match="hwal devices --json"):
        Machine.from_json(document)


# the small ones


@given(value=of(World))
def test_a_world_is_local_when_all_its_ranks_are(value: World) -> None:
    assert value.is_local == (value.size == value.local_size)


def test_a_choice_reads_as_a_sentence() -> None:
    assert str(machine().choice) == "null: asked for; passed over: toy (blocked)"
    assert str(Decision("bf16", "AMX")) == "bf16 (AMX)"


@pytest.mark.parametrize("bandwidth", (-1, -0.5, 2e15, 1e300))
def test_a_link_is_no_slower_than_nothing_and_no_faster_than_any(bandwidth: float) -> None:
    document = machine().to_dict()
    document["links"][1]["bandwidth"] = bandwidth
    with pytest.raises(RecordError, match=r"expected bytes per second, 0 to 1e\+15, got ") as caught:
        Machine.from_dict(document, "machine.json")
    assert caught.value.where == "machine.json.links[1].bandwidth"
