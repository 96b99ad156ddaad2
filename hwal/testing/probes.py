"""The probe suite: what every backend's `__init__.py` and `probe.py` must keep. Inherit it, with pytest:

    class TestMyProbe(ProbeSuite):
        backend = hwal_mine.backend
        hosts = {"my-box": (RecordedHost.load("tests/hosts/my-box"), Expected(devices=({"threads": 8},)))}

Each of its tests takes the backend as hwal finds it: through `probe`, `select`, `environment` and the class attributes.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from time import perf_counter
from typing import Any, ClassVar

import pytest

from hwal.backend import Backend
from hwal.errors import HwalError
from hwal.host import Host, Output, RecordedHost, Recording
from hwal.testing.hosts import bare_hosts
from hwal.topology import Device, Link
from hwal.values import Caps, Decision, Plan, Probe, Process, Target

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "torch_xla", "numpy")
NOT_KNOWN = (-1, "", "n/a", "na", "none", "unknown", "nan", "null", "?")  # what unknown must not be spelled as
FIGURES = ("memory_bytes", "cores", "threads")  # those that never stand without a source
GARBAGE = (
    "",
    "\n",
    "\0\0\0",
    "-1",
    "0",
    "9" * 400,
    "nan",
    "max",
    "max max",
    "0-",
    "5-2",
    "0-99999999999",
    "½ ²,³",
    "\ufffd" * 9,
    ":::\n" * 9,
)


@dataclass(frozen=True)
class Expected:
    """What a probe must say of a recorded host: as much of it as is written here.

    Attributes:
        devices: for each device, in order, fields of Device -> their values. Its length is the number of devices.
        links: the classes of the links, in order of the pairs (0, 1), (0, 2) …
        says: texts that the reason, the hint or a note must contain.
        silent: texts that none of them may contain.
    """

    devices: tuple[Mapping[str, Any], ...] = ()
    state: str = "ready"
    links: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def check(backend: Backend, probe: Probe) -> None:
    """Asserts that a Probe is consistent in itself, spells unknown as None, and survives JSON."""
    assert probe.backend == backend.name, f"the probe calls itself {probe.backend!r}, the backend {backend.name!r}"
    assert probe.reason.strip() and "\n" not in probe.reason, f"the reason is one sentence, not {probe.reason!r}"
    assert all(note.strip() for note in probe.notes), "an empty note"
    if probe.state == "absent":
        assert not probe.devices and not probe.links and not probe.notes, "absent is silent: no devices, links or notes"
    if probe.state == "blocked":
        assert probe.hint, "blocked says what to type"
    if probe.state == "ready":
        assert probe.devices, "ready without a device"
    assert [device.index for device in probe.devices] == list(range(len(probe.devices))), "indices are 0, 1, 2 …"
    ids = [device.id for device in probe.devices if device.id is not None]
    assert len(ids) == len(set(ids)), f"ids are not unique: {ids}"
    for device in probe.devices:
        _check_device(backend, device)
    pairs = [(link.a, link.b) for link in probe.links]
    assert pairs == list(combinations(range(len(probe.devices)), 2)), "one link for each pair of devices, in order"
    for link in probe.links:
        _check_link(backend, link)
    assert Probe.from_json(probe.to_json()) == probe, "a probe reads back from its JSON as it was"


def _check_device(backend: Backend, device: Device) -> None:
    assert device.backend == backend.name, f"a device of {device.backend!r}, the backend is {backend.name!r}"
    for name, value in device.to_dict().items():
        if name == "backend":
            continue
        values = [value, *(value if isinstance(value, list) else ()), *(value.values() if isinstance(value, dict) else ())]
        for item in values:
            spelled = item.strip().lower() if isinstance(item, str) else item
            assert spelled not in NOT_KNOWN, f"{name} is {item!r}: what is not known is None"
    assert device.memory_bytes is None or device.memory_bytes > 0, "memory_bytes is 0: what is not known is None"
    assert device.threads is None or device.threads > 0, "threads is 0: what is not known is None"
    assert device.cores is None or device.cores, "cores is empty: what is not known is None"
    strangers = set(device.sources) - set(device.to_dict())
    assert not strangers, f"sources of fields that a Device does not have: {strangers}"
    for name in FIGURES:
        if getattr(device, name) is not None:
            assert name in device.sources, f"{name} has no source"


def _check_link(backend: Backend, link: Link) -> None:
    assert link.backend == backend.name, f"a link of {link.backend!r}, the backend is {backend.name!r}"
    assert link.source, "a link has no source"
    assert link.class_.strip().lower() not in ("n/a", "unknown", "?"), f"class {link.class_!r}: what is not known is ''"
    assert link.bandwidth is None or link.bandwidth > 0, "bandwidth is 0: what is not known is None"


class ProbeSuite:
    """Attributes to set: `backend`, and `hosts`, name -> (recorded host, what must be said of it; None: nothing in particular).

    `budget_ms` bounds the probe of the live machine; raise it only for a vendor's driver that is slow by itself.
    """

    backend: ClassVar[Backend]
    hosts: ClassVar[Mapping[str, tuple[RecordedHost, Expected | None]]] = {}
    budget_ms: ClassVar[float] = 10.0

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "host_name" in metafunc.fixturenames:
            metafunc.parametrize("host_name", list(self.every_host()))

    def every_host(self) -> dict[str, tuple[RecordedHost, Expected | None]]:
        """`hosts`, and those that answer nothing."""
        return {**{name: (host, None) for name, host in bare_hosts().items()}, **self.hosts}

    # the declaration

    def test_declares_itself(self) -> None:
        backend = self.backend
        assert re.fullmatch("[a-z][a-z0-9_]*", backend.name), f"--device cannot read the name {backend.name!r}"
        assert backend.priority is None or type(backend.priority) is int, f"priority is {backend.priority!r}"
        assert isinstance(backend.caps, Caps), f"caps is {backend.caps!r}"
        assert backend.extra, "extra is empty"
        assert set(backend.runtimes) == set(backend.caps.frameworks), "caps.frameworks are those that have a runtime"
        for target in backend.runtimes.values():
            assert re.fullmatch(r"\w+(\.\w+)*:\w+", target), f"{target!r} is not module:Class"
        assert all(backend.caps.emulated.values()), "what is emulated says what it costs"

    def test_imports_no_framework(self) -> None:
        module = type(self.backend).__module__
        code = (
            f"import sys, importlib; from hwal.host import Host; backend = importlib.import_module({module!r}).backend; "
            f"backend.probe(Host()); print(*sorted(set(sys.modules) & set({FRAMEWORKS!r})))"
        )
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "", f"the backend's declaration or its probe imports {done.stdout.strip()}"

    # the probe

    def test_says_what_is_there(self, host_name: str) -> None:
        host, expected = self.every_host()[host_name]
        probe = self.backend.probe(host)
        check(self.backend, probe)
        if expected is None:
            return
        assert probe.state == expected.state, f"{probe.state}: {probe.reason}"
        assert len(probe.devices) == len(expected.devices), f"{len(probe.devices)} devices: {probe.reason}"
        for device, facts in zip(probe.devices, expected.devices, strict=True):
            wrong = {name: (getattr(device, name), value) for name, value in facts.items() if getattr(device, name) != value}
            assert not wrong, f"device {device.index}, field: (said, expected): {wrong}"
        classes = tuple(link.class_ for link in probe.links)
        assert classes == expected.links, f"links are {classes}, expected {expected.links}"
        bars = [f"{each.reason}\n{each.hint}" for each in probe.unfit]
        said = "\n".join([probe.reason, probe.hint or "", *probe.notes, *bars])
        for text in expected.says:
            assert text in said, f"{text!r} is not said in {said!r}"
        for text in expected.silent:
            assert text not in said, f"{text!r} is said in {said!r}"

    def test_survives_garbled_hosts(self, host_name: str) -> None:
        host, _ = self.every_host()[host_name]
        for garbled in garble(host):
            check(self.backend, self.backend.probe(garbled))

    def test_probes_this_machine_in_time(self) -> None:
        times = []
        for _ in range(5):
            begun = perf_counter()
            probe = self.backend.probe(Host())
            times.append((perf_counter() - begun) * 1e3)
        check(self.backend, probe)
        assert min(times) <= self.budget_ms, f"the probe took {min(times):.1f} ms, at most {self.budget_ms:g} are granted"

    # targets

    def three(self) -> Probe:
        """A probe of three devices, for the tests of select()."""
        name = self.backend.name
        devices = tuple(Device(name, i, "device", f"{name}-id-{i}") for i in range(3))
        links = tuple(Link(a, b, "SYS", backend=name) for a, b in combinations(range(3), 2))
        return Probe(name, "ready", "three devices", devices=devices, links=links)

    def test_select_takes_all_when_none_is_named(self) -> None:
        chosen = self.backend.select(Target(self.backend.name), self.three())
        assert chosen == self.three().devices, f"--device {self.backend.name} takes {chosen}"

    def test_select_keeps_the_order_asked(self) -> None:
        """Override this where what follows the colon is not a list of devices."""
        probe = self.three()
        for spec in ("2,0", f"{probe.devices[2].id}, {probe.devices[0].id}"):
            chosen = self.backend.select(Target(self.backend.name, spec), probe)
            assert chosen == (probe.devices[2], probe.devices[0]), f"{spec!r} takes {[device.index for device in chosen]}"
        with pytest.raises(HwalError, match="twice"):
            self.backend.select(Target(self.backend.name, "1,1"), probe)

    def test_select_refuses_what_is_not_there(self) -> None:
        """Naming what was asked and, in the message or the hint, what would have been right."""
        probe = self.three()
        for spec in ("7", "no-such-device"):
            target = Target(self.backend.name, spec)
            with pytest.raises(HwalError) as caught:
                self.backend.select(target, probe)
            text = str(caught.value)
            assert spec in text and (caught.value.hint or all(str(device.id) in text for device in probe.devices)), text
            assert caught.value.exit_code == 2, "a wrong target is the user's to mend: exit code 2"

    def test_environment_is_text(self, host_name: str) -> None:
        devices = self.backend.probe(self.every_host()[host_name][0]).devices
        if not devices:
            devices = (Device(self.backend.name, 0),)
        processes = tuple(Process(i, (device.index,), device.cores, device.threads) for i, device in enumerate(devices))
        told = Decision("fp32", "the suite says so")
        plan = Plan(self.backend.name, told, devices, processes, {"dp": len(devices)}, told, told)
        for variables in (self.backend.environment(plan), self.backend.resources(plan)):
            for name, value in variables.items():
                assert isinstance(name, str) and isinstance(value, str), f"{name!r}: {value!r} is not text"


def garble(host: RecordedHost) -> Iterator[RecordedHost]:
    """The host with its files, programs and variables broken: all, those of one kind, or some, each in many ways."""
    recording = host.recording
    kinds: dict[str, list[str]] = {}
    for path in recording.files:
        kinds.setdefault(re.sub("[0-9]+", "#", path), []).append(path)
    chance = random.Random(0)
    some = [path for path in recording.files if chance.random() < 0.5]
    for garbage in GARBAGE:
        for paths in (list(recording.files), some, *kinds.values()):
            yield _broken(recording, paths, garbage)
    for paths in kinds.values():
        cut = {path: text[: chance.randrange(len(text) + 1)] for path, text in recording.files.items() if path in paths}
        yield RecordedHost(replace(recording, files={**recording.files, **cut}))
        yield RecordedHost(replace(recording, files={k: v for k, v in recording.files.items() if k not in paths}))


def _broken(recording: Recording, paths: list[str], garbage: str) -> RecordedHost:
    broken = Output(garbage, garbage, 1)
    return RecordedHost(
        replace(
            recording,
            files={**recording.files, **dict.fromkeys(paths, garbage)},
            commands=dict.fromkeys(recording.commands, broken),
            versions=dict.fromkeys(recording.versions, garbage),
            drivers=dict.fromkeys(recording.drivers, garbage),
            env=dict.fromkeys(recording.env, garbage),
        )
    )
