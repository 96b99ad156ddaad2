"""Which of the chips, or how many virtual devices, `--device tpu:…` takes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hwal.errors import HwalError
from hwal.host import RecordedHost, Recording
from hwal.testing.probes import check, garble
from hwal.values import AUTO, Probe, Target
from tests.tpu.test_probe import GIB, HOSTS, backend, chosen


@pytest.mark.parametrize(
    ("host", "spec", "ids"),
    [
        ("tpu-v5e-8", "v5e-8", range(8)),
        ("tpu-v5e-8", "v5litepod-8", range(8)),
        ("tpu-v4-8", "v4-8", range(4)),
        ("tpu-v5e-8", "3", (3,)),
        ("tpu-v5e-8", "2,3", (2, 3)),
        ("tpu-v5e-8", "4,5,6,7", (4, 5, 6, 7)),
        ("tpu-v2-8", "2,3", (2, 3)),  # the two cores of a chip
    ],
)
def test_parts_that_one_process_can_have(host: str, spec: str, ids: Iterable[int]) -> None:
    assert [device.index for device in chosen(f"tpu:{spec}", HOSTS[host]).devices] == list(ids)


@pytest.mark.parametrize(
    ("host", "spec", "says"),
    [
        ("tpu-v5e-8", "1,2", "these 2 of 8 TPU devices are no block that one process can have"),
        ("tpu-v5e-8", "0,1,2", "no block"),
        ("tpu-v2-8", "0", "no block"),  # half a chip
        ("tpu-v5e-8", "v5e-4", "a v5e-4 was asked for, 4 × TPU v5e; here are 8 × TPU v5e"),
        ("tpu-v5e-8", "v4-8", "a v4-8 was asked for, 4 × TPU v4; here are 8 × TPU v5e"),
        ("tpu-v5e-8", "9", "tpu has no device '9'"),
        ("tpu-held", "0", "tpu is blocked: 1 × TPU v5e: libtpu is held"),
    ],
)
def test_parts_that_cannot_be_had(host: str, spec: str, says: str) -> None:
    with pytest.raises(HwalError) as caught:
        chosen(f"tpu:{spec}", HOSTS[host])
    assert says in caught.value.what and caught.value.exit_code == 2 and caught.value.hint


# XLA's CPU platform

LAPTOP = RecordedHost(
    Recording(files={"/proc/meminfo": "MemTotal: 8388608 kB\n"}, versions={"torch": "2.8.0", "torch_xla": "2.8.1"})
)


@pytest.mark.parametrize(("spec", "count"), [("cpu", 1), ("cpu:1", 1), ("cpu:4", 4), ("CPU:64", 64)])
def test_virtual_devices(spec: str, count: int) -> None:
    choice = chosen(f"tpu:{spec}", LAPTOP)
    assert [device.id for device in choice.devices] == [f"cpu{i}" for i in range(count)]
    for device in choice.devices:
        assert (device.arch, device.memory_bytes, dict(device.native)) == ("cpu", 8 * GIB // count, {"fp32": "XLA:CPU"})


def virtual(host: RecordedHost) -> Probe:
    return backend.probe(host, Target("tpu", "cpu:2"))


def test_virtual_devices_are_there_only_by_name() -> None:
    assert backend.probe(LAPTOP).state == "absent"
    assert backend.probe(LAPTOP, Target("tpu")).state == "absent"
    assert chosen(AUTO, LAPTOP).backend == "cpu"
    probe = virtual(HOSTS["tpu-held"])  # the chip's troubles are none of theirs
    assert (probe.state, len(probe.devices), [link.class_ for link in probe.links]) == ("ready", 2, ["HOST"])


def test_virtual_devices_need_torch_xla_and_its_own_platform() -> None:
    assert "torch_xla is not installed" in virtual(RecordedHost(Recording(versions={"torch": "2.8.0"}))).reason
    assert "built for torch 2.8" in virtual(HOSTS["tpu-other-torch"]).reason
    assert virtual(HOSTS["tpu-no-libtpu"]).state == "ready"
    assert "PJRT_DEVICE=TPU in your environment keeps XLA off" in virtual(HOSTS["tpu-v5e-8"]).reason


def test_virtual_devices_survive_garbled_hosts() -> None:
    for host in (LAPTOP, HOSTS["tpu-held"]):
        for garbled in garble(host):
            check(backend, virtual(garbled))


@pytest.mark.parametrize("spec", ["cpu:0", "cpu:65", "cpu:x", "cpux", "cpu:", "cpu:1,2", "cpu:" + "9" * 5000])
def test_a_number_of_virtual_devices_that_cannot_be(spec: str) -> None:
    with pytest.raises(HwalError) as caught:
        chosen(f"tpu:{spec}", LAPTOP)
    assert "is not a number of XLA's CPU devices: cpu, or cpu:1 to cpu:64" in caught.value.what
    assert (caught.value.hint, caught.value.exit_code) == ("--device tpu:cpu:4", 2)
