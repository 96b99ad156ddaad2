"""The registry: built-ins, plug-ins found by their entry points, and what happens when one of them is not well."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hwal.backend import Backend
from hwal.detect import detect
from hwal.errors import HwalError
from hwal.host import EntryPoint, Host, RecordedHost, Recording
from hwal.registry import BUILT_IN, Registry, Row
from hwal.values import Probe

GOOD = """
from hwal.backend import Backend
from hwal.topology import Device
from hwal.values import Caps, Probe

class Good(Backend):
    name, priority, extra, caps, runtimes = "good", 5, "torch", Caps(), {}
    def probe(self, host, asked=None):
        return Probe("good", "ready", "it is here", devices=(Device("good", 0),))

backend = Good()
not_a_backend = 42
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes modules and registers entry points: plugin("name=module:attribute", module="source")."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(*entries: str, **modules: str) -> Registry:
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)
            monkeypatch.delitem(sys.modules, module, raising=False)
        points = []
        for entry in entries:
            name, _, value = entry.partition("=")
            points.append(EntryPoint(name, value, f"{name}-plugin"))
        return Registry(RecordedHost(Recording(entry_points=tuple(points))))

    yield install
    for module in ("plugged", "broken"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_ins_load(name: str) -> None:
    backend = Registry(RecordedHost(Recording())).load(name)
    assert isinstance(backend, Backend) and backend.name == name


def test_built_ins_come_first_and_plug_ins_after_them(plugin: Any) -> None:
    registry = plugin("good=plugged:backend", plugged=GOOD)
    assert registry.names == (*BUILT_IN, "good")
    assert registry.load("good").priority == 5
    probes = detect(RecordedHost(Recording()), registry)
    assert [probe.backend for probe in probes] == [*BUILT_IN, "good"]
    assert probes[-1].state == "ready" and probes[-1].ms is not None


def test_the_attribute_may_be_left_out(plugin: Any) -> None:
    assert plugin("good=plugged", plugged=GOOD).load("good").name == "good"


@pytest.mark.parametrize(
    ("entry", "source", "said"),
    [
        ("bad=nowhere_to_be_found:backend", "", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("bad=broken:backend", "import torch_of_another_version", "ModuleNotFoundError"),
        ("bad=broken:backend", "raise RuntimeError('driver too old')", "RuntimeError: driver too old"),
        ("bad=broken:backend", "this is no python", "SyntaxError"),
        ("bad=broken:backend", "x = 1", "AttributeError"),
        ("bad=broken:not_a_backend", GOOD, "TypeError: broken:not_a_backend is a int, not a hwal.backend.Backend"),
        ("bad=broken:backend", GOOD, "TypeError: broken:backend calls itself 'good', its entry point 'bad'"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_blocked_with_the_reason(plugin: Any, entry: str, source: str, said: str) -> None:
    registry = plugin(entry, broken=source)
    with pytest.raises(HwalError) as caught:
        registry.load("bad")
    assert said in caught.value.what
    probe = detect(RecordedHost(Recording()), registry)[-1]
    assert (probe.backend, probe.state) == ("bad", "blocked")
    assert said in probe.reason and "from bad-plugin" in probe.reason
    assert probe.hint == "pip uninstall bad-plugin, or mend it"


def test_a_built_in_that_cannot_be_loaded_says_reinstall(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(RecordedHost(Recording()))
    registry.rows["cpu"] = Row("cpu", "nowhere_to_be_found:backend", "hwal")
    with pytest.raises(HwalError) as caught:
        registry.load("cpu")
    assert caught.value.hint == "reinstall hwal"


def test_a_clash_with_a_built_in_is_told_and_the_built_in_wins(plugin: Any) -> None:
    registry = plugin("cpu=plugged:backend", plugged=GOOD)
    assert registry.names == tuple(BUILT_IN)
    assert type(registry.load("cpu")).__module__ == "hwal_cpu"
    clash = list(registry.backends())[-1]
    assert isinstance(clash, Probe)
    assert (clash.backend, clash.state) == ("cpu", "blocked")
    assert clash.reason == "cpu-plugin offers a backend named 'cpu', which is hwal's"
    assert "pip uninstall cpu-plugin" in (clash.hint or "")


def test_two_plug_ins_of_one_name(plugin: Any, tmp_path: Path) -> None:
    points = (EntryPoint("good", "plugged:backend", "a"), EntryPoint("good", "other:backend", "b"))
    plugin(plugged=GOOD)
    registry = Registry(RecordedHost(Recording(entry_points=points)))
    assert registry.load("good").name == "good"
    clash = list(registry.backends())[-1]
    assert isinstance(clash, Probe) and clash.reason == "b offers a backend named 'good', which is a's"


def test_entry_points_are_read_from_the_files_of_installed_distributions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dist(folder: Path, name: str, text: str) -> None:
        (folder / name).mkdir(parents=True)
        (folder / name / "entry_points.txt").write_text(text)

    dist(tmp_path / "a", "toy-1.0.dist-info", "[console_scripts]\nx=y\n\n[hwal.backends]\n# said\ntoy = hwal_toy:backend\n")
    dist(tmp_path / "a", "other-2.dist-info", "[console_scripts]\ntoy=z\n")
    dist(tmp_path / "b", "old.egg-info", "[hwal.backends]\nold=old_pkg:backend\n[more]\nno=no\n")
    (tmp_path / "a" / "empty-1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "missing"), str(tmp_path / "b"), str(tmp_path / "a")])
    assert Host().entry_points("hwal.backends") == (
        EntryPoint("old", "old_pkg:backend", "old"),
        EntryPoint("toy", "hwal_toy:backend", "toy-1.0"),
    )
