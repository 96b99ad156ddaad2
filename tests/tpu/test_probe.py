"""The TPU's probe under the probe suite, on hosts written by hand (each says so in its `about`), and what is its alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hwal_tpu
from hwal.choose import choose
from hwal.detect import detect
from hwal.errors import HwalError
from hwal.host import Output, RecordedHost, Recording
from hwal.registry import Registry
from hwal.testing.hosts import load_all
from hwal.testing.probes import Expected, ProbeSuite
from hwal.values import AUTO, Choice, Target
from hwal_tpu.chips import BY_TYPE, kind_of, type_of

GIB = 1 << 30
HOSTS = {name: host for name, host in load_all(Path(__file__).parents[1] / "hosts").items() if name.startswith("tpu-")}
backend = hwal_tpu.backend
SLICE_UNKNOWN = "whether this host is one of several in a slice is not known: HWAL_TPU_METADATA=1 asks the metadata server"

NODE_SAYS = (", for Keras, by tensorflow 2.18.0", "reads data from gs:// only")


def chips(arch: str, gib: int, numas: Iterable[int], cores: int = 1) -> tuple[Mapping[str, Any], ...]:
    """The devices of chips from 0000:00:05.0 on: each `gib` GiB, on the NUMA nodes in order."""
    return tuple(
        {
            "name": f"TPU {arch}",
            "arch": arch,
            "id": f"0000:00:{5 + chip:02x}.0" + (f"/{core}" if cores > 1 else ""),
            "memory_bytes": gib * GIB,
            "numa": numa,
            "native": {"bf16": "MXU", "fp32": "MXU (bf16 passes)"},
        }
        for chip, numa in enumerate(numas)
        for core in range(cores)
    )


def links(count: int, cores: int = 1) -> tuple[str, ...]:
    return tuple("CHIP" if a // cores == b // cores else "ICI" for a in range(count) for b in range(a + 1, count))


def blocked(*says: str) -> Expected:
    return Expected(state="blocked", says=says)


EXPECTED = {
    "tpu-v2-8": Expected(
        chips("v2", 8, (0, 0, 1, 1), 2),
        links=links(8, 2),
        says=("4 × TPU v2, v2-8 (2x2), 16 GiB of HBM and 45 bf16 TFLOPS each", SLICE_UNKNOWN),
    ),
    "tpu-v3-8": Expected(chips("v3", 16, (0, 0, 1, 1), 2), links=links(8, 2), says=("4 × TPU v3, v3-8 (2x2), 32 GiB",)),
    "tpu-v4-8": Expected(
        chips("v4", 32, (0, 0, 1, 1)), links=links(4), says=("4 × TPU v4, v4-8 (2x2x1), 32 GiB",), silent=("slice", "worker")
    ),
    "tpu-v5e-1": Expected(
        chips("v5e", 16, (0,)), says=("1 × TPU v5e, v5e-1 (1x1), 16 GiB of HBM and 197 bf16",), silent=("slice",)
    ),
    "tpu-v5e-8": Expected(
        chips("v5e", 16, (0, 0, 0, 0, 1, 1, 1, 1)),
        links=links(8),
        says=("8 × TPU v5e, v5litepod-8 (2x4)",),
        silent=("slice", "worker"),
    ),
    "tpu-v5p-8": Expected(chips("v5p", 95, (0, 0, 1, 1)), links=links(4), says=("4 × TPU v5p, v5p-8 (2x2x1)", SLICE_UNKNOWN)),
    "tpu-v6e-8": Expected(
        chips("v6e", 32, (0, 0, 0, 0, 1, 1, 1, 1)), links=links(8), says=("8 × TPU v6e, v6e-8 (2x4)", SLICE_UNKNOWN)
    ),
    "tpu-v4-32-worker-1": Expected(
        chips("v4", 32, (0, 0, 1, 1)),
        links=links(4),
        says=("4 × TPU v4, worker 1 of 4 of a v4-32 (2x2x4), 32 GiB",),
        silent=("not known",),
    ),
    "tpu-gke-v5e-16": Expected(
        chips("v5e", 16, (0,) * 4),
        links=links(4),
        says=("4 × TPU v5e, worker 2 of 4 of a v5litepod-16 (4x4)",),
        silent=("not known",),
    ),
    "tpu-gke-multislice": Expected(
        chips("v5e", 16, (0,) * 4), links=links(4), says=("slice 1 of 2, over the data centre's network",)
    ),
    "tpu-colab-v5e-1": Expected(chips("v5e", 16, (0,)), says=("1 × TPU v5e, v5e-1 (1x1)",), silent=("slice",)),
    "tpu-lock-of-another-user": Expected(
        chips("v4", 32, (0, 0, 1, 1)), links=links(4), says=("/tmp/libtpu_lockfile is another user's", "lsof -w /dev/accel0")
    ),
    "tpu-node-keras": Expected(({"id": "grpc://10.240.1.2:8470", "name": "TPU Node"},), says=NODE_SAYS),
    "tpu-colab-node-keras": Expected(({"id": "grpc://10.63.28.250:8470"},), says=NODE_SAYS),
    "tpu-node-by-name": Expected(state="absent"),
    "tpu-v3-8-keras": Expected(chips("v3", 16, (0, 0, 1, 1), 2), links=links(8, 2), says=("4 × TPU v3, v3-8 (2x2), 32 GiB",)),
    "tpu-node-v3-8": blocked("a TPU Node at grpc://10.240.1.2:8470", "legacy", "gs://", "TPU VM"),
    "tpu-colab-node": blocked("a TPU Node at grpc://10.63.28.250:8470", "v5e-1 runtime"),
    "tpu-no-torch-xla": blocked(
        "4 × TPU v5p: torch_xla is not installed", "pip install 'torch==2.8.*' 'torch_xla[tpu]==2.8.1'"
    ),
    "tpu-other-torch": blocked("torch_xla 2.8.1 is built for torch 2.8, and torch 2.13.0+cpu is", "pip install 'torch==2.8.*'"),
    "tpu-no-libtpu": blocked("8 × TPU v5e: libtpu, the TPU's driver library, is not", "pip install 'libtpu==0.0.17'"),
    "tpu-other-libtpu": blocked("built for libtpu 0.0.17, and libtpu 0.0.51 is installed", "pip install 'libtpu==0.0.17'"),
    "tpu-torch-tpu": blocked(
        "torch_tpu 0.2.0 is installed, which wants libtpu>=0.0.50 and torch>=2.11.0,<=2.15.0", "still to come"
    ),
    "tpu-held": blocked("held by another process: 4711 (python3 train.py --steps 10000) has /dev/vfio/0 open", "kill 4711"),
    "tpu-no-permission": blocked("may not open /dev/vfio/0, /dev/vfio/1, /dev/vfio/2 …", "ls -l /dev/vfio/0"),
    "tpu-container-without-nodes": blocked("the chips are on PCI, but /dev has no", "docker run --privileged"),
    "tpu-7x": blocked("4 × TPU 7x: torch_xla does not know the TPU 7x; torch_tpu does"),
}


class TestTpuProbe(ProbeSuite):
    backend = hwal_tpu.backend
    hosts: ClassVar = {name: (host, EXPECTED[name]) for name, host in HOSTS.items()}

    def test_select_keeps_the_order_asked(self) -> None:
        """Two of three chips are no block; the order of those that are is kept."""
        two = replace(self.three(), devices=self.three().devices[:2], links=self.three().links[:1])
        assert self.backend.select(Target("tpu", "1,tpu-id-0"), two) == (two.devices[1], two.devices[0])
        assert self.backend.select(Target("tpu", "2"), self.three()) == (self.three().devices[2],)
        with pytest.raises(HwalError, match="twice"):
            self.backend.select(Target("tpu", "1,1"), two)


def test_every_host_is_in_the_table_and_says_that_it_was_written() -> None:
    assert set(HOSTS) == set(EXPECTED)
    for name, host in HOSTS.items():
        assert host.recording.about.startswith("Written by hand from public knowledge, not recorded"), name


def changed(name: str, files: Mapping[str, str | None] | None = None, **fields: Any) -> RecordedHost:
    """A host with other files (None: gone), other variables (None: unset), or other facts."""
    recording = HOSTS[name].recording
    env = {**recording.env, **fields.pop("env", {})}
    versions = {**recording.versions, **fields.pop("versions", {})}
    merged = {**recording.files, **(files or {})}
    return RecordedHost(
        replace(
            recording,
            files={path: text for path, text in merged.items() if text is not None},
            env={key: value for key, value in env.items() if value is not None},
            versions={key: value for key, value in versions.items() if value is not None},
            **fields,
        )
    )


def chosen(text: str, on: RecordedHost) -> Choice:
    registry = Registry(on)
    target = Target.parse(text, registry.names)
    return choose(target, detect(on, registry, target), {name: registry.load(name) for name in registry.names})


# chips


def test_auto_takes_it_where_it_is_ready() -> None:
    assert chosen(AUTO, HOSTS["tpu-v5e-8"]).backend == "tpu"
    choice = chosen(AUTO, HOSTS["tpu-held"])
    assert choice.backend == "cpu"
    assert "blocked: 1 × TPU v5e: libtpu is held" in choice.passed_over[0].why


def test_a_network_card_of_the_same_vendor_is_no_chip() -> None:
    card = {"/sys/bus/pci/devices/0000:00:05.0/device": "0x0042\n"}
    assert backend.probe(changed("tpu-v5e-1", card)).state == "absent"


def test_a_chip_without_a_public_name_is_counted_and_no_more_is_said() -> None:
    probe = backend.probe(changed("tpu-v5e-1", {"/sys/bus/pci/devices/0000:00:05.0/device": "0x0056\n"}))
    assert (probe.state, probe.reason) == ("ready", "1 × TPU, of a generation that is not known")
    assert (probe.devices[0].name, probe.devices[0].memory_bytes, probe.devices[0].arch) == ("TPU", None, None)


def test_chips_are_in_the_order_of_their_iommu_groups() -> None:
    """PCI addresses need not be: libtpu goes by /dev/vfio."""
    links = {f"/sys/bus/pci/devices/0000:00:{5 + i:02x}.0/iommu_group": f"../{9 - i}" for i in range(4)}
    nodes = {f"/dev/vfio/{9 - i}": "" for i in range(4)}
    probe = backend.probe(changed("tpu-v5p-8", nodes, links=links))
    assert [device.id for device in probe.devices] == [f"0000:00:0{8 - i}.0" for i in range(4)]


def test_visible_chips_are_those_that_there_are() -> None:
    probe = backend.probe(changed("tpu-v5e-8", env={"TPU_VISIBLE_CHIPS": "2,3"}))
    assert [device.id for device in probe.devices] == ["0000:00:07.0", "0000:00:08.0"]
    assert [device.index for device in probe.devices] == [0, 1]
    assert "TPU_VISIBLE_CHIPS=2,3: 2 of 8 chips" in probe.notes
    assert len(backend.probe(changed("tpu-v5e-8", env={"TPU_VISIBLE_CHIPS": "all"})).devices) == 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9", "'9' is none of this host's chips (0 to 7)"),
        ("0, 1", "' 1' is none of this host's chips (0 to 7)"),
        ("none", "'none' is none of this host's chips (0 to 7)"),
        ("1,2", "a process has all chips, one, or 2 or 4 that lie together (0,1 or 2,3)"),
        ("0,1,2", "a process has all chips, one, or 2 or 4 that lie together (0,1 or 2,3)"),
    ],
)
def test_visible_chips_that_no_process_can_have_are_told(text: str, why: str) -> None:
    """Instead of taking all chips: others may train on them."""
    probe = backend.probe(changed("tpu-v5e-8", env={"TPU_VISIBLE_CHIPS": text}))
    assert (probe.state, probe.reason) == ("blocked", f"8 × TPU v5e: TPU_VISIBLE_CHIPS={text}: {why}")


def test_chips_that_are_not_visible_may_be_held() -> None:
    links = {**HOSTS["tpu-v5e-8"].recording.links, "/proc/self": "7", "/proc/4711/fd/3": "/dev/vfio/5"}
    files = {"/proc/4711/cmdline": "python3\0other.py\0"}
    assert backend.probe(changed("tpu-v5e-8", files, links=links)).state == "blocked"
    assert backend.probe(changed("tpu-v5e-8", files, links=links, env={"TPU_VISIBLE_CHIPS": "0"})).state == "ready"


def test_what_this_process_itself_holds_is_not_held_by_another() -> None:
    links = {**HOSTS["tpu-held"].recording.links, "/proc/self": "4711"}
    assert backend.probe(changed("tpu-held", links=links)).state == "ready"


def test_a_platform_that_the_user_has_set_otherwise_blocks() -> None:
    probe = backend.probe(changed("tpu-v5e-8", env={"PJRT_DEVICE": "CPU"}))
    assert (probe.state, probe.hint) == ("blocked", "unset PJRT_DEVICE: hwal sets what the device needs")


def test_variables_of_a_tpu_without_its_chips() -> None:
    on = RecordedHost(Recording(env={"TPU_ACCELERATOR_TYPE": "v5litepod-8"}))
    probe = backend.probe(on)
    assert (probe.state, probe.reason) == (
        "blocked",
        "TPU_ACCELERATOR_TYPE=v5litepod-8 says that there is a TPU, but no chip is on PCI",
    )


# packages


@pytest.mark.parametrize(
    ("versions", "requires", "says"),
    [
        ({"torch": None}, None, "torch is not installed; torch_xla 2.8.1 needs torch 2.8"),
        ({"torch_xla": "2.7.0"}, None, "torch_xla 2.7.0 is installed; hwal runs on 2.8 and 2.9"),
        ({"torch_xla": "2.10.0"}, None, "torch_xla 2.10.0 is installed; hwal runs on 2.8 and 2.9"),
        ({"torch_xla": "2.8.0+libtpu", "torch": "2.8.1+cu128"}, None, None),
        (
            {"torch_xla": "2.9.0", "torch": "2.9.1"},
            ("libtpu==0.0.21; extra == 'tpu'",),
            "built for libtpu 0.0.21, and libtpu 0.0.17",
        ),
        ({"libtpu": "0.0.17.1"}, None, None),
        ({"libtpu": "0.0.170"}, None, "libtpu 0.0.170 is installed"),
        ({"libtpu": None, "libtpu-nightly": "0.1.dev20250101"}, None, None),
        ({"libtpu": "0.0.51", "torch_tpu": "0.2.0"}, None, "torch_tpu 0.2.0 is here too"),
        ({"torch": "2.13.0", "torch_tpu": "0.2.0"}, None, "torch 2.13.0 is installed; torch_tpu 0.2.0 is here too"),
        ({}, (), None),
    ],
)
def test_packages(versions: Mapping[str, str | None], requires: tuple[str, ...] | None, says: str | None) -> None:
    fields: dict[str, Any] = {} if requires is None else {"requires": {"torch_xla": requires}}
    probe = backend.probe(changed("tpu-v5e-1", versions=versions, **fields))
    assert probe.state == ("ready" if says is None else "blocked"), probe.reason
    assert says is None or says in probe.reason


def test_a_library_that_a_variable_names_is_taken_at_its_word() -> None:
    for name in ("TPU_LIBRARY_PATH", "PTXLA_TPU_LIBRARY_PATH"):
        assert backend.probe(changed("tpu-no-libtpu", env={name: "/lib/libtpu.so"})).state == "ready"


# the metadata server


class Listening(RecordedHost):
    """Counts the programs that are asked for."""

    asked = 0

    def run(self, *argv: str, timeout: float = 5.0) -> Output | None:
        self.asked += 1
        return super().run(*argv, timeout=timeout)


def test_the_metadata_server_is_asked_only_when_the_user_says_so() -> None:
    for value, asked in ((None, 0), ("0", 0), ("off", 0), ("1", 2)):
        host = Listening(changed("tpu-v4-32-worker-1", env={"HWAL_TPU_METADATA": value}).recording)
        probe = backend.probe(host)
        assert host.asked == asked
        assert ("worker 1 of 4" in probe.reason) == bool(asked)
        assert (SLICE_UNKNOWN in probe.notes) != bool(asked)


def test_a_metadata_server_that_does_not_answer_is_told() -> None:
    probe = backend.probe(changed("tpu-v4-32-worker-1", commands={}))
    assert "not known: the metadata server did not answer" in probe.notes[0]


def test_what_a_variable_says_comes_before_the_server() -> None:
    assert "worker 3 of 4" in backend.probe(changed("tpu-v4-32-worker-1", env={"TPU_WORKER_ID": "3"})).reason


# targets


@pytest.mark.parametrize(
    ("text", "generation", "count"),
    [
        ("v2-8", "v2", 4), ("v3-32", "v3", 16), ("v4-8", "v4", 4), ("v4-32", "v4", 16), ("v5p-8", "v5p", 4),
        ("v5litepod-16", "v5e", 16), ("v5e-8", "v5e", 8), ("V6E-256", "v6e", 256), ("tpu7x-8", "7x", 4),
    ],
)  # fmt: skip
def test_types_of_accelerators(text: str, generation: str, count: int) -> None:
    kind = kind_of(text)
    assert kind is not None and (kind[0].name, kind[1]) == (generation, count)
    assert kind_of(type_of(*kind)) == kind


def test_what_is_no_type() -> None:
    for text in (None, "", "v5e", "v5e-", "v5e-0", "v5e-x", "h100-8", "v9-8", "-8", "v5e-8-8"):
        assert kind_of(text) is None, text
    assert all(kind_of(f"{word}-8") for word in BY_TYPE)


def test_a_node_is_taken_by_its_name_only_where_a_tpu_is_asked_for() -> None:
    host = HOSTS["tpu-node-by-name"]
    assert backend.probe(host).state == "absent"
    probe = backend.probe(host, Target("tpu"))
    assert (probe.state, probe.devices[0].id) == ("ready", "my-tpu") and probe.reason.startswith("a TPU Node at my-tpu")
