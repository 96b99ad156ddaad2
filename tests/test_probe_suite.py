"""The probe suite itself: each thing it promises to catch, it catches."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hwal_null
from hwal.host import Host, RecordedHost, Recording
from hwal.testing.probes import Expected, ProbeSuite, check
from hwal.topology import Device, Link
from hwal.values import Probe, Target

ONE = Device(
    "null", 0, "box", "a", memory_bytes=8, cores=(0,), threads=1, sources={"memory_bytes": "t", "cores": "t", "threads": "t"}
)
TWO = replace(ONE, index=1, id="b")
LINK = Link(0, 1, "SYS", backend="null")
GOOD = Probe("null", "ready", "two", devices=(ONE, TWO), links=(LINK,))


def with_device(**fields: Any) -> Probe:
    return replace(GOOD, devices=(replace(ONE, **fields), TWO))


def test_a_good_probe_passes() -> None:
    check(hwal_null.backend, GOOD)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (replace(GOOD, backend="nul"), "calls itself 'nul'"),
        (replace(GOOD, reason=""), "the reason is one sentence"),
        (replace(GOOD, reason="a\nb"), "the reason is one sentence"),
        (replace(GOOD, notes=("", "b")), "empty note"),
        (replace(GOOD, state="absent"), "absent is silent"),
        (replace(GOOD, state="blocked"), "blocked says what to type"),
        (replace(GOOD, devices=(), links=()), "ready without a device"),
        (replace(GOOD, devices=(TWO, ONE)), "indices"),
        (with_device(index=1), "indices"),
        (with_device(id="b"), "ids are not unique"),
        (with_device(backend="cpu"), "a device of 'cpu'"),
        (with_device(memory_bytes=0), "memory_bytes is 0"),
        (with_device(memory_bytes=-1), "memory_bytes is -1"),
        (with_device(threads=0), "threads is 0"),
        (with_device(cores=()), "cores is empty"),
        (with_device(numa=-1), "numa is -1"),
        (with_device(name="N/A"), "name is 'N/A'"),
        (with_device(arch="unknown "), "arch is 'unknown '"),
        (with_device(native={"bf16": ""}), "native is ''"),
        (with_device(sources={"threads": "t", "cores": "t"}), "memory_bytes has no source"),
        (with_device(sources={**ONE.sources, "colour": "t"}), "colour"),
        (replace(GOOD, links=()), "one link for each pair"),
        (replace(GOOD, links=(LINK, LINK)), "one link for each pair"),
        (replace(GOOD, links=(replace(LINK, a=1, b=0),)), "one link for each pair"),
        (replace(GOOD, links=(replace(LINK, backend=""),)), "a link of ''"),
        (replace(GOOD, links=(replace(LINK, class_="N/A"),)), "class 'N/A'"),
        (replace(GOOD, links=(replace(LINK, bandwidth=0.0),)), "bandwidth is 0"),
        (replace(GOOD, links=(replace(LINK, source=""),)), "a link has no source"),
        (with_device(native={"bf16": ("a",)}), "expected str"),  # JSON of it would not be a Probe
        (with_device(cores=[0]), "reads back"),
    ],
)
def test_check_catches(bad: Probe, says: str) -> None:
    with pytest.raises(Exception, match=says):
        check(hwal_null.backend, bad)


class Odd(hwal_null.NullBackend):
    """A backend whose faults are switched on one by one."""

    fault = ""

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        if self.fault == "trusts its files" and host.read("/count") is not None:
            return replace(GOOD, notes=(f"{int(host.read('/count') or '')} devices",))
        return GOOD

    def select(self, asked: Target, probe: Probe) -> tuple[Device, ...]:
        if self.fault == "sorts":
            return tuple(device for device in probe.devices if asked.spec is None or str(device.index) in asked.spec)
        return super(hwal_null.NullBackend, self).select(asked, probe)


def suite(fault: str, expected: Expected | None = None) -> ProbeSuite:
    class Suite(ProbeSuite):
        backend = Odd()
        hosts = {"counted": (RecordedHost(Recording(files={"/count": "2"})), expected)}  # noqa: RUF012

    Suite.backend.fault = fault  # type: ignore[attr-defined]
    return Suite()


def test_a_sound_backend_passes() -> None:
    sound = suite("", Expected(({"id": "a"}, {}), links=("SYS",), says=("two",), silent=("three",)))
    sound.test_declares_itself()
    sound.test_says_what_is_there("counted")
    sound.test_survives_garbled_hosts("counted")
    sound.test_select_takes_all_when_none_is_named()
    sound.test_select_keeps_the_order_asked()
    sound.test_select_refuses_what_is_not_there()
    sound.test_environment_is_text("counted")


def test_a_probe_that_trusts_its_files_is_caught() -> None:
    trusting = suite("trusts its files")
    trusting.test_says_what_is_there("counted")
    with pytest.raises(ValueError, match="invalid literal"):
        trusting.test_survives_garbled_hosts("counted")


def test_a_select_that_sorts_is_caught() -> None:
    with pytest.raises(AssertionError):
        suite("sorts").test_select_keeps_the_order_asked()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        suite("sorts").test_select_refuses_what_is_not_there()


@pytest.mark.parametrize(
    "expected",
    [
        Expected(({"id": "a"}, {}), links=("SYS",), state="blocked"),
        Expected(({"id": "a"},), links=("SYS",)),
        Expected(({"id": "z"}, {}), links=("SYS",)),
        Expected(({}, {}), links=("NODE",)),
        Expected(({}, {}), links=("SYS",), says=("three",)),
        Expected(({}, {}), links=("SYS",), silent=("two",)),
    ],
)
def test_an_expectation_that_is_not_met_is_caught(expected: Expected) -> None:
    with pytest.raises(AssertionError):
        suite("", expected).test_says_what_is_there("counted")


def test_a_slow_probe_is_caught() -> None:
    slow = suite("")
    type(slow).budget_ms = 0.0
    with pytest.raises(AssertionError, match=r"the probe took .* at most 0 are granted"):
        slow.test_probes_this_machine_in_time()


@pytest.mark.parametrize(
    ("where", "fails"), [("at the top", "imports numpy"), ("in the probe", "imports numpy"), ("nowhere", None)]
)
def test_a_framework_in_the_declaration_or_the_probe_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, fails: str | None
) -> None:
    """An empty numpy.py stands in for the real one."""
    (tmp_path / "numpy.py").touch()
    (tmp_path / "hwal_heavy.py").write_text(
        "import hwal_null\n"
        + ("import numpy\n" if where == "at the top" else "")
        + "class Heavy(hwal_null.NullBackend):\n    def probe(self, host, asked=None):\n"
        + ("        import numpy\n" if where == "in the probe" else "")
        + "        return super().probe(host, asked)\nbackend = Heavy()\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    class Heavy(hwal_null.NullBackend):
        pass

    Heavy.__module__ = "hwal_heavy"
    heavy = suite("")
    type(heavy).backend = Heavy()
    if fails is None:
        heavy.test_imports_no_framework()
    else:
        with pytest.raises(AssertionError, match=fails):
            heavy.test_imports_no_framework()
