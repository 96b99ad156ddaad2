"""What a run on each recorded GPU machine is: devices by rank, precision, cores, what each rank is given with what
reason, and what Keras makes of it.

`launches.txt` holds them as they are; `python -m tests.backends.test_gpu_launch` writes it anew, to be looked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwal.choose import choose
from hwal.errors import DeviceError
from hwal.host import RecordedHost
from hwal.launch.variables import settle, wanted
from hwal.plan import make_plan
from hwal.plan.keras import GPU_VARIABLES
from hwal.registry import Registry
from hwal.testing.hosts import load_all
from hwal.values import Decision, Plan, Request, Target, World
from tests.backends import gpus

SNAPSHOT = Path(__file__).with_name("launches.txt")
TORCH = {"cuda": "2.13.0+cu130", "rocm": "2.13.0+rocm7.2"}


def launches() -> Iterator[str]:
    """A few lines for each machine."""
    for name, host in load_all(gpus.HOSTS).items():
        if name.startswith(("cuda-", "rocm-")):
            yield from _launch(name, host)


def _launch(name: str, host: RecordedHost) -> Iterator[str]:
    kind = name.partition("-")[0]
    try:
        plan, host = planned(host, kind)
    except DeviceError as error:
        yield f"{name}: {error.what}"
        return
    backend = Registry(host).load(kind)
    assert any("no real GPU yet" in note for note in plan.notes)
    ranks = [f"{process.devices[0]} beside {process.cores[0] if process.cores else '?'}" for process in plan.processes]
    yield f"{name}: {plan.precision.value}, {len(ranks)} ranks: {', '.join(ranks)}"
    wants = wanted(backend, plan, backend.probe(host), host)
    delta, told = settle(wants, host.recording.env)
    assert backend.rank_environment(plan, World(), host).items() <= delta.items(), "a rank that no hwal started sets the same"
    assert set(delta) == {*wants.tuned, *wants.masks}
    yield from (f"  {line}" for line in told)
    yield from (f"  {variable}={value}" for variable, value in wants.masks.items())
    keras, _ = planned(host, kind, framework="keras")
    assert settle(wanted(backend, keras, backend.probe(host), host), host.recording.env)[0] == {**GPU_VARIABLES, **wants.masks}
    yield f"  keras: {keras.local_size} process of {keras.processes[0].threads} threads, {keras.strategy}"
    for resource, count in backend.resources(plan).items():
        yield f"  {resource}: {count}"


def planned(host: RecordedHost, kind: str, nodes: int = 1, framework: str = "torch", **more: Any) -> tuple[Plan, RecordedHost]:
    """What all devices of a kind do on a machine with torch for it; and the machine, changed by `more`."""
    recording = replace(host.recording, **more)
    host = RecordedHost(replace(recording, versions={"torch": TORCH.get(kind, "2.13.0+cpu"), **recording.versions}))
    backend = Registry(host).load(kind)
    choice = choose(Target(kind), [backend.probe(host)], {kind: backend}, framework=framework)
    return make_plan(choice, backend.caps, Request(), Decision(framework, "a test"), nodes), host


def tuned(machine: str, nodes: int = 1, **more: Any) -> dict[str, str]:
    """The variables that a machine is given for its sake, without the allocator's."""
    kind = machine.partition("-")[0]
    plan, host = planned(RecordedHost.load(gpus.HOSTS / machine), kind, nodes, **more)
    backend = Registry(host).load(kind)
    told = backend.tuning(plan, backend.probe(host), host)
    assert all(decision.why for decision in told.values())
    return {name: decision.value for name, decision in told.items() if "ALLOC" not in name}


def test_launches_are_as_they_were() -> None:
    assert list(launches()) == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def with_files(name: str, files: dict[str, str]) -> dict[str, Any]:
    return {"name": "gpu01", "files": {**RecordedHost.load(gpus.HOSTS / name).recording.files, **files}}


ROUTE = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
ROUTE += "virbr0\t0064A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
ROUTE += "wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
ROUTE += "br0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
NET = "/sys/class/net"
NETWORK = {f"{NET}/{name}/operstate": "up\n" for name in ("lo", "docker0", "eth0", "br0", "wlan0")}
NETWORK |= {f"{NET}/{name}/bridge/priority": "1\n" for name in ("docker0", "br0", "virbr0")}
NETWORK |= {f"{NET}/veth1/brport/state": "3\n", f"{NET}/tun0/tun_flags": "0x1002\n", "/proc/net/route": ROUTE}
NAMED = {"/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gpu01.lab gpu01 # by the installer\n"}


def port(adapter: str, layer: str, rate: int | None = 400, number: int = 1, state: str = "4: ACTIVE") -> dict[str, str]:
    folder = f"/sys/class/infiniband/{adapter}/ports/{number}"
    speed = {} if rate is None else {f"{folder}/rate": f"{rate} Gb/sec (4X NDR)\n"}
    return {f"{folder}/link_layer": f"{layer}\n", f"{folder}/state": f"{state}\n", **speed}


FAST = port("mlx5_0", "InfiniBand") | port("mlx5_1", "InfiniBand")
ROCE = {path: text for i in range(8) for path, text in port(f"mlx5_{i}", "Ethernet").items()}


@pytest.mark.parametrize("name", ("cuda-hgx-h100", "rocm-mi300x-8"))
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        (NETWORK, {"NCCL_SOCKET_IFNAME": "^=docker0,lo,tun0,veth1,virbr0"}),  # br0 leads out
        (NAMED, {}),  # no route is known
        (
            NETWORK | NAMED,
            {"NCCL_SOCKET_IFNAME": "^=docker0,lo,tun0,veth1,virbr0", "GLOO_SOCKET_IFNAME": "br0"},
        ),
        (FAST, {}),
        (FAST | port("mlx5_2", "Ethernet"), {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        (FAST | port("mlx5_1", "Ethernet", 100, 2), {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),  # an adapter with a port of each
        (ROCE | port("mlx5_8", "InfiniBand"), {"NCCL_IB_HCA": "=" + ",".join(f"mlx5_{i}:1" for i in range(8))}),
        (port("mlx5_0", "InfiniBand", 200) | port("mlx5_1", "Ethernet", 200), {}),  # anybody's guess
        (FAST | port("mlx5_2", "Ethernet", None), {}),
        (FAST | port("mlx5_2", "Ethernet", state="1: DOWN"), {}),
        (port("mlx5_2", "Ethernet"), {}),
    ],
)
def test_the_network_of_several_machines(name: str, files: dict[str, str], expected: dict[str, str]) -> None:
    assert tuned(name, 2, **with_files(name, files)) == expected
    assert tuned(name, 1, **with_files(name, files)) == {}, "one machine needs no network"


def test_cpus_of_several_machines_meet_over_the_network() -> None:
    for files, expected in ((NETWORK | NAMED, {"GLOO_SOCKET_IFNAME": "br0"}), (NETWORK, {}), (NAMED, {})):
        host = RecordedHost.load(gpus.HOSTS / "sapphire-rapids-2-sockets")
        plan, host = planned(host, "cpu", 2, name="gpu01", files={**host.recording.files, **files})
        backend = Registry(host).load("cpu")
        told = backend.tuning(plan, backend.probe(host), host)
        assert {name: decision.value for name, decision in told.items()} == expected
        assert backend.tuning(planned(host, "cpu")[0], backend.probe(host), host) == {}, "on one machine the loopback will do"
        assert backend.tuning(replace(plan, framework=Decision("keras", "a test")), backend.probe(host), host) == {}


def test_p2p_is_off_where_no_pair_of_the_run_has_it() -> None:
    assert tuned("cuda-4090-8") == {"NCCL_P2P_DISABLE": "1"}
    assert tuned("cuda-4090-8", env={"CUDA_VISIBLE_DEVICES": "3"}) == {}, "one process"
    report = gpus.flat("4090", 4, "PIX", read=False)
    pairs = tuple(replace(pair, read=(pair.a, pair.b) == (0, 1)) for pair in report.pairs)
    some = gpus.host(replace(report, pairs=pairs), "")
    assert tuned("cuda-4090-8", drivers=some.drivers) == {}, "NCCL leaves out the other pairs by itself"
    unknown = gpus.host(gpus.flat("4090", 4, "PIX", read=None), "")
    assert tuned("cuda-4090-8", drivers=unknown.drivers) == {}


@pytest.mark.parametrize(
    ("name", "torch", "more", "expected"),
    [
        ("cuda-hgx-h100", "2.13.0+cu130", {}, "PYTORCH_ALLOC_CONF"),
        ("cuda-hgx-h100", "2.8.0", {}, "PYTORCH_CUDA_ALLOC_CONF"),
        ("cuda-hgx-h100", "2.4.1+cu121", {}, None),
        ("cuda-hgx-h100", "nightly", {}, None),
        ("cuda-hgx-h100", "2.13.0", {"env": {"PYTORCH_CUDA_ALLOC_CONF": "x"}}, "PYTORCH_CUDA_ALLOC_CONF"),  # stays, and is told
        ("cuda-wsl2", "2.13.0+cu130", {}, None),
        ("cuda-mig-chosen", "2.13.0+cu130", {}, None),
        ("cuda-vgpu", "2.13.0+cu130", {}, None),
        ("rocm-mi300x-8", "2.13.0+rocm7.2", {}, "PYTORCH_ALLOC_CONF"),
        ("rocm-mi300x-8", "2.12.0+rocm7.2", {}, None),
        ("rocm-mi300x-8", "2.13.0+rocm6.4", {}, None),
        ("rocm-mi300x-8", "2.13.0", {}, None),
    ],
)
def test_the_allocator(name: str, torch: str, more: dict[str, Any], expected: str | None) -> None:
    kind = name.partition("-")[0]
    plan, host = planned(RecordedHost.load(gpus.HOSTS / name), kind, versions={"torch": torch}, **more)
    backend = Registry(host).load(kind)
    told = backend.tuning(plan, backend.probe(host), host)
    assert [name for name in told if "ALLOC" in name] == ([] if expected is None else [expected])
    keras = replace(plan, framework=Decision("keras", "a test"))
    assert backend.tuning(keras, backend.probe(host), host) == {}


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(launches()) + "\n", encoding="utf-8")
