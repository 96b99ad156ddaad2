"""Which build of a framework is installed is a matter of that framework alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hwal.choose import choose
from hwal.cli import main
from hwal.doctor import examine
from hwal.errors import DeviceError
from hwal.host import RecordedHost
from hwal.registry import Registry
from hwal.values import Choice, Target
from hwal_gpu.builds import built_for, toolkit
from tests.backends import gpus

MACHINES = {"cuda": "cuda-hgx-h100", "rocm": "rocm-mi300x-8"}


def on(kind: str, **versions: str) -> RecordedHost:
    recording = RecordedHost.load(gpus.HOSTS / MACHINES[kind]).recording
    return RecordedHost(replace(recording, versions={name.replace("_", "-"): text for name, text in versions.items()}))


def choice(host: RecordedHost, framework: str, device: str = "auto") -> Choice:
    backends = {name: Registry(host).load(name) for name in ("cuda", "rocm", "cpu")}
    probes = [backend.probe(host) for backend in backends.values()]
    return choose(Target(device), probes, backends, framework=framework)


@pytest.mark.parametrize(
    ("torch", "fit"),
    [
        ("2.9.0", ("cuda", "rocm")),
        ("2.9.0+cu128", ("cuda",)),
        ("2.9.0+rocm6.4", ("rocm",)),
        ("2.9.0+cpu", ()),
        ("2.9.0+cpu.cxx11.abi", ()),
        ("2.9.0+xpu", ()),
        ("2.6.0+git684f6f2", ("cuda", "rocm")),  # built from source, as in AMD's images
        ("2.6.0a0+ecf3bae40a.nv25.01", ("cuda", "rocm")),
        ("2.6.0+custom", ("cuda", "rocm")),
    ],
)
@pytest.mark.parametrize("kind", MACHINES)
def test_torch_blocks_torch_alone(kind: str, torch: str, fit: tuple[str, ...]) -> None:
    host = on(kind, torch=torch, tensorflow="2.21.0")
    assert choice(host, "keras", kind).backend == choice(host, "keras").backend == kind
    if kind in fit:
        assert choice(host, "torch", kind).backend == choice(host, "torch").backend == kind
        return
    auto = choice(host, "torch")
    assert auto.backend == "cpu" and torch in auto.passed_over[0].why
    with pytest.raises(DeviceError, match=f"{kind} is blocked: torch .* was built for") as caught:
        choice(host, "torch", kind)
    assert "install torch's build" in (caught.value.hint or "")


def test_torch_of_the_package_index_is_built_for_cuda() -> None:
    """Its version bears no mark, but its wheel asks for NVIDIA's runtime: on AMD's GPUs it cannot compute."""
    asks = ('cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"', "filelock")
    for kind, backend in (("cuda", "cuda"), ("rocm", "cpu")):
        plain = RecordedHost(replace(on(kind, torch="2.13.0").recording, requires={"torch": asks}))
        assert choice(plain, "torch").backend == backend
    (bar,) = Registry(plain).load("rocm").probe(plain).unfit
    assert bar.reason == "torch 2.13.0 was built for NVIDIA's GPUs"
    windows = RecordedHost(replace(plain.recording, system="win32"))
    assert toolkit(windows) is None, "the same wheel's lines for Linux"


FILE = "__version__ = '2.6.0'\ncuda: Optional[str] = {}\ngit_version = 'f00'\nhip{} = {}\nxpu: Optional[str] = None\n"


@pytest.mark.parametrize(
    ("torch", "file", "mark", "cuda"),
    [
        ("2.6.0a0+ecf3bae40a.nv25.01", FILE.format("'12.8'", "", "None"), "cu", (12, 8)),  # NVIDIA's own images
        ("2.6.0+git684f6f2", FILE.format("None", ": Optional[str]", "'6.4.43482-0f2d60242'"), "rocm", None),  # AMD's
        ("2.6.0", FILE.format("None", ": str", "None"), "cpu", None),  # conda-forge's for CPUs
        ("2.6.0", FILE.format("'12.6'", "", "None"), "cu", (12, 6)),
        ("2.6.0", "cuda = get_cuda()\n", None, None),
        ("2.6.0", "", None, None),
        (None, FILE.format("'12.6'", "", "None"), None, None),
    ],
)
def test_torchs_version_file(torch: str | None, file: str, mark: str | None, cuda: tuple[int, int] | None) -> None:
    recording = on("cuda", **({} if torch is None else {"torch": torch})).recording
    host = RecordedHost(replace(recording, files={**recording.files, "site-packages/torch/version.py": file}))
    assert (built_for(host), toolkit(host)) == (mark, cuda)
    for name, own in (("cuda", "cu"), ("rocm", "rocm")):
        bars = Registry(host).load(name).probe(replaced(host, name)).unfit
        assert bool(bars) == (mark not in (None, own))


def replaced(host: RecordedHost, kind: str) -> RecordedHost:
    """The machine of a kind, with the packages of another one."""
    machine = RecordedHost.load(gpus.HOSTS / MACHINES[kind]).recording
    packages = {path: text for path, text in host.recording.files.items() if path.startswith("site-packages/")}
    return RecordedHost(replace(machine, files={**machine.files, **packages}, versions=host.recording.versions))


@pytest.mark.parametrize("kind", MACHINES)
def test_tensorflow_for_cpus_blocks_keras_alone(kind: str) -> None:
    slim = on(kind, torch="2.9.0", tensorflow_cpu="2.21.0")
    assert choice(slim, "torch").backend == kind and choice(slim, "keras").backend == "cpu"
    assert choice(on(kind, tensorflow_cpu="2.21.0", tensorflow="2.21.0"), "keras").backend == kind


def test_doctor_tells_it_as_loud_as_it_is() -> None:
    for versions, level in (({}, "error"), ({"tensorflow": "2.21.0"}, "note")):
        host = on("rocm", torch="2.9.0+cpu", **versions)
        backend = Registry(host).load("rocm")
        told = [each for each in examine(host, [backend.probe(host)], {"rocm": backend}) if each.subject == "torch"]
        assert [each.level for each in told] == [level] and "2.9.0+cpu was built for CPUs only" in told[0].evidence


def test_devices_are_shown_with_what_cannot_use_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    paper = str(gpus.HOSTS / "cuda-other-torch")
    assert main(["devices", "--from", paper]) == 0
    out = capsys.readouterr().out
    assert "cuda: 8 × NVIDIA H100" in out and "note: not for torch: torch 2.8.0+cpu was built for CPUs only; install" in out
    assert "auto would take cpu" in out
    monkeypatch.setenv("HWAL_TOPOLOGY", paper)
    for framework, backend in (("torch", "cpu"), ("keras", "cuda")):
        assert main(["train", "--dry-run", "--framework", framework]) == 0
        assert json.loads(capsys.readouterr().out)["plan"]["backend"] == backend
