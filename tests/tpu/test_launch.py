"""The TPU's launch: variables before torch_xla opens its devices, the world of a slice, and what cannot be started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hwal_tpu
from hwal.choose import choose
from hwal.detect import detect
from hwal.errors import PlanError, WorldError
from hwal.host import RecordedHost
from hwal.plan import make_plan
from hwal.plan.keras import VARIABLES
from hwal.registry import Registry
from hwal.values import Decision, Plan, Request, Target, World
from tests.cli.conftest import folder, hwal  # noqa: F401 - fixtures
from tests.tpu.test_probe import HOSTS, changed
from tests.tpu.test_select import LAPTOP

backend = hwal_tpu.backend
XLA = os.environ.get("XLA_PYTHON", "")
ALONE = World()
TPU = {"PJRT_DEVICE": "TPU"}


def planned(host: RecordedHost, text: str = "tpu", n: int | None = None, framework: str = "torch") -> Plan:
    registry = Registry(host)
    target = Target.parse(text, registry.names)
    choice = choose(target, detect(host, registry, target), {name: registry.load(name) for name in registry.names})
    plan = make_plan(choice, backend.caps, Request(target=target, processes=n), Decision(framework, "a test"))
    backend.check(plan)
    return plan


# one process


@pytest.mark.parametrize(
    ("host", "text", "mesh", "ours", "ranks"),
    [
        ("tpu-v2-8", "tpu", 8, TPU, {}),
        ("tpu-v3-8", "tpu", 8, TPU, {}),
        ("tpu-v4-8", "tpu", 4, TPU, {}),
        ("tpu-v5e-1", "tpu", 1, TPU, {}),
        ("tpu-v5e-8", "tpu:v5e-8", 8, TPU, {}),
        ("tpu-v5p-8", "tpu", 4, TPU, {}),
        ("tpu-v6e-8", "tpu", 8, TPU, {}),
        ("tpu-v4-32-worker-1", "tpu", 4, TPU, {}),
        ("tpu-gke-v5e-16", "tpu", 4, TPU, {}),
        ("tpu-colab-v5e-1", "tpu", 1, TPU, {}),
        ("tpu-v5e-8", "tpu:3", 1, TPU, ("3", "1,1,1")),
        ("tpu-v5e-8", "tpu:2,3", 2, TPU, ("2,3", "1,2,1")),
        ("tpu-v5e-8", "tpu:4,5,6,7", 4, TPU, ("4,5,6,7", "2,2,1")),
        ("tpu-v2-8", "tpu:2,3", 2, TPU, ("1", "1,1,1")),
        ("tpu-held", "tpu:cpu", 1, {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}, {}),
        ("tpu-held", "tpu:cpu:4", 4, {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}, {}),
    ],
)
def test_one_process_drives_all_devices(host: str, text: str, mesh: int, ours: Mapping[str, str], ranks: Any) -> None:
    plan = planned(HOSTS[host], text)
    assert (plan.local_size, dict(plan.mesh)) == (1, {"dp": mesh})
    assert backend.environment(plan) == ours
    names = ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
    part = dict(zip(names, (*ranks, "1,1,1"), strict=True)) if ranks else {}
    assert backend.rank_environment(plan, ALONE, HOSTS[host]) == part


def test_chips_that_a_variable_leaves_out_stay_out() -> None:
    """The probe numbers what is visible from 0; libtpu's numbers are those of all chips."""
    host = changed("tpu-v5e-8", env={"TPU_VISIBLE_CHIPS": "4,5,6,7"})
    assert backend.rank_environment(planned(host), ALONE, host)["TPU_VISIBLE_CHIPS"] == "4,5,6,7"
    assert backend.rank_environment(planned(host, "tpu:2,3"), ALONE, host)["TPU_VISIBLE_CHIPS"] == "6,7"


def test_a_scheduler_grants_chips() -> None:
    assert backend.resources(planned(HOSTS["tpu-v2-8"])) == {"google.com/tpu": "4"}
    assert backend.resources(planned(HOSTS["tpu-v5e-8"])) == {"google.com/tpu": "8"}
    assert backend.resources(planned(LAPTOP, "tpu:cpu:4")) == {}


# a process a chip


def of_rank(host: str, rank: int, here: int, nodes: int = 1) -> dict[str, str]:
    plan = planned(HOSTS[host], n=here)
    world = World(rank, here * nodes, rank % here, here, "torchrun", "127.0.0.1", 29500)
    return backend.rank_environment(plan, world, HOSTS[host])


def test_a_process_a_chip() -> None:
    assert of_rank("tpu-v4-8", 2, 4) == {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "CLOUD_TPU_TASK_ID": "2",
        "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477,localhost:8478,localhost:8479",
        "TPU_VISIBLE_CHIPS": "2",
        "TPU_PROCESS_PORT": "8478",
        "PJRT_LOCAL_PROCESS_RANK": "2",
        "PJRT_LOCAL_PROCESS_COUNT": "4",
    }
    assert of_rank("tpu-v5e-8", 7, 8)["TPU_PROCESS_BOUNDS"] == "2,4,1"
    part = planned(HOSTS["tpu-v5e-8"], "tpu:4,5,6,7", 4)
    told = backend.rank_environment(part, World(1, 4, 1, 4, "torchrun"), HOSTS["tpu-v5e-8"])
    assert (told["TPU_PROCESS_BOUNDS"], told["TPU_VISIBLE_CHIPS"]) == ("2,2,1", "5")


def test_a_process_a_chip_has_a_runtime_of_its_own() -> None:
    assert backend.runtime(planned(HOSTS["tpu-v4-8"], n=4)) == "hwal_tpu.multi_process:MultiProcessTorchRuntime"
    assert backend.runtime(planned(HOSTS["tpu-v4-8"])) == backend.runtimes["torch"]


def test_a_process_a_chip_on_the_hosts_of_a_slice() -> None:
    told = of_rank("tpu-v4-32-worker-1", 7, 4, nodes=4)
    assert told["TPU_PROCESS_BOUNDS"] == "2,2,4"
    assert told["CLOUD_TPU_TASK_ID"] == "7"
    assert told["TPU_PROCESS_ADDRESSES"].split(",")[:5] == [
        *(f"10.130.0.4:{port}" for port in range(8476, 8480)),
        "10.130.0.7:8476",
    ]
    with pytest.raises(WorldError, match="the names of the slice's hosts are not known: 4 machines train"):
        of_rank("tpu-v5p-8", 0, 4, nodes=4)


CONFIGURE = """
import json, os, sys
import torch_xla._internal.tpu as tpu
before = dict(os.environ)
for environ, rank, here in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(before | environ)
    tpu.configure_topology(rank % here, here)
    print(json.dumps({name: value for name, value in os.environ.items() if name not in before | environ}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not XLA, reason="XLA_PYTHON is not set: XLA_PYTHON=$(python3.11 ci/environment.py ci/xla.txt)")
def test_they_are_the_variables_that_torch_xla_sets_itself() -> None:
    cases = (("tpu-v5e-8", 5, 8, 1), ("tpu-gke-v5e-16", 10, 4, 4))
    asked = [({**HOSTS[host].recording.env, "PJRT_DEVICE": "CPU"}, rank, here) for host, rank, here, _ in cases]
    command = [XLA, "-c", CONFIGURE, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        theirs, ours = json.loads(line), of_rank(*case)
        assert len(theirs) == 6
        assert {name: value for name, value in ours.items() if not name.startswith("PJRT_LOCAL_")} == theirs


@pytest.mark.parametrize(
    ("host", "text", "n", "says", "hint"),
    [
        ("tpu-v4-8", "tpu", 2, "2 processes for 4 tpu devices: there is one for all of them, or one for each", "or -n 4"),
        ("tpu-v4-8", "tpu", 5, "5 processes for 4 tpu devices", "leave -n out"),
        ("tpu-v5e-1", "tpu", 2, "2 processes for 1 tpu device:", "leave -n out: one process drives all devices"),
        ("tpu-v3-8", "tpu", 8, "8 processes for the cores of 4 chips", "one process drives all cores"),
        ("tpu-held", "tpu:cpu:4", 4, "4 processes on XLA's CPU platform would have nothing to talk to", "drives all 4 devices"),
    ],
)
def test_numbers_of_processes_that_cannot_be(host: str, text: str, n: int, says: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(HOSTS[host], text, n)
    assert says in caught.value.what and hint in (caught.value.hint or "") and caught.value.exit_code == 2


# slices


def test_the_hosts_of_a_slice_are_a_world() -> None:
    for name, rank, address in (("tpu-v4-32-worker-1", 1, "10.130.0.4"), ("tpu-gke-v5e-16", 2, "train-0.train")):
        assert backend.world(planned(HOSTS[name]), HOSTS[name]) == World(rank, 4, 0, 1, "slice", address, 29500)
    for name in ("tpu-v4-8", "tpu-v5e-8", "tpu-colab-v5e-1", "tpu-v2-8"):
        assert backend.world(planned(HOSTS[name]), HOSTS[name]) is None
    assert backend.world(planned(HOSTS["tpu-gke-v5e-16"], "tpu:cpu:2"), HOSTS["tpu-gke-v5e-16"]) is None
    assert backend.world(planned(LAPTOP, "tpu:cpu"), LAPTOP) is None


@pytest.mark.parametrize(
    ("host", "text", "n", "env", "says", "hint"),
    [
        ("tpu-gke-multislice", "tpu", None, {}, "2 slices that train together are not in this version", "MEGASCALE"),
        ("tpu-gke-v5e-16", "tpu", None, {"TPU_WORKER_ID": None}, "which of them this is is not known", "TPU_WORKER_ID"),
        ("tpu-gke-v5e-16", "tpu", None, {"TPU_WORKER_ID": "4"}, "TPU_WORKER_ID=4 is not below 4", "TPU_WORKER_ID"),
        ("tpu-gke-v5e-16", "tpu:0", None, {}, "1 of this host's chips, which is one of 4 hosts", "--device tpu"),
        (
            "tpu-gke-v5e-16", "tpu", 4, {}, "4 processes on each of 4 hosts need torchrun between them",
            "--engine-args '--nnodes 4 --node-rank 2 --master-addr train-0.train --master-port 29500'",
        ),
    ],
)  # fmt: skip
def test_worlds_that_cannot_be(
    host: str, text: str, n: int | None, env: Mapping[str, str | None], says: str, hint: str
) -> None:
    on = changed(host, env=env)
    with pytest.raises(WorldError) as caught:
        backend.world(planned(on, text, n), on)
    assert says in caught.value.what and hint in (caught.value.hint or "")


def test_every_host_of_a_slice_joins_its_world(hwal: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HWAL_TOPOLOGY", str(Path(__file__).parents[1] / "hosts" / "tpu-v4-32-worker-1"))
    result = hwal("train", "--out", "out", "--dry-run")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    (command,) = document["launch"]["commands"]
    assert "already rank 1 of 4 under slice: joins it and starts nothing" in document["launch"]["why"]
    assert json.loads(command["env"]["HWAL_WORLD"]) == World(1, 4, 0, 1, "slice", "10.130.0.4", 29500).to_dict()
    assert (command["env"]["PJRT_DEVICE"], command["env"]["HWAL_PROCESSES"]) == ("TPU", "4")
    assert (document["plan"]["nodes"], document["plan"]["mesh"]) == (4, {"dp": 16})
    assert hwal("train", "--dry-run").err == (
        "hwal: error: 4 machines need a folder for the run that is the same for all of them\n"
        "  where: --out\n"
        "  why:   each has started on its own, and they cannot agree on one that is free\n"
        "  try:   --out DIR, on a disk that all of them have\n"
    )
    given = ["--engine-args", "--nnodes 4 --node-rank 1 --master-addr a --master-port 1"]
    assert hwal("train", "--out", "out", "--dry-run", "-n", "4", *given).code == 0
    assert "need torchrun between them" in hwal("train", "--out", "out", "--dry-run", "-n", "4").err


TOGETHER = """
import hwal
with hwal.start() as rt:
    print(rt.rank, rt.job.world.launcher, rt.mean(float(rt.rank)), rt.run_dir, flush=True)
"""


@pytest.mark.slow
def test_machines_that_know_their_world_train_together(tmp_path: Path) -> None:
    """Two processes stand for two hosts; each was started by itself, with what hwal train leaves a worker of a slice."""
    (tmp_path / "script.py").write_text(TOGETHER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    roots = os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("", "backends"))
    common = {**os.environ, "PYTHONPATH": roots, "HWAL_DEVICE": "cpu", "HWAL_OUT": "out", "OMP_NUM_THREADS": "1"}
    hosts = [
        subprocess.Popen(
            [sys.executable, "script.py"],
            env={**common, "HWAL_WORLD": World(rank, 2, 0, 1, "slice", "127.0.0.1", port).to_json()},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [host.communicate(timeout=120) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    last = [out.splitlines()[-1] for out, _ in said]  # torch 2.8's gloo prints there too
    assert last == [f"{rank} slice 0.5 out" for rank in range(2)]


# Keras


def test_keras_drives_all_cores_of_a_machine_or_a_node_by_one_process() -> None:
    for name, replicas in (("tpu-v3-8-keras", 8), ("tpu-node-keras", 1), ("tpu-colab-node-keras", 1), ("tpu-node-by-name", 1)):
        plan = planned(HOSTS[name], framework="keras")
        assert (plan.local_size, len(plan.devices)) == (1, replicas), name
        assert backend.environment(plan) == VARIABLES and backend.rank_environment(plan, ALONE, HOSTS[name]) == {}
        assert backend.world(plan, HOSTS[name]) is None
    part = planned(HOSTS["tpu-v3-8-keras"], "tpu:0,1", framework="keras")
    assert backend.rank_environment(part, ALONE, HOSTS["tpu-v3-8-keras"])["TPU_VISIBLE_CHIPS"] == "0"


def test_a_node_is_not_for_torch() -> None:
    with pytest.raises(PlanError) as caught:
        planned(HOSTS["tpu-node-keras"])
    assert str(caught.value).splitlines() == [
        "a TPU Node at grpc://10.240.1.2:8470 is for Keras only: torch_xla (PJRT) drives chips of its own machine",
        "  where: --device tpu",
        "  try:   run on a TPU VM (gcloud compute tpus tpu-vm create …)",
    ]


def test_several_processes_of_keras_are_refused() -> None:
    with pytest.raises(PlanError) as caught:
        planned(HOSTS["tpu-v3-8-keras"], n=8, framework="keras")
    assert str(caught.value).splitlines() == [
        "8 processes of Keras on a TPU",
        "  where: -n 8",
        "  why:   TPUStrategy drives all cores from one process",
        "  try:   leave -n out",
    ]


def test_a_slice_of_several_hosts_is_not_for_keras() -> None:
    host = HOSTS["tpu-gke-v5e-16"]
    with pytest.raises(WorldError) as caught:
        backend.world(planned(host, framework="keras"), host)
    assert str(caught.value).splitlines() == [
        "a slice of 4 hosts: Keras trains on the chips of one host in this version",
        "  where: TPU_WORKER_HOSTNAMES",
        "  why:   TPUStrategy would drive the others through a TensorFlow server on each, which nobody has started there",
        "  try:   a slice of one host (v5e-8, v4-8), or a torch script",
    ]
