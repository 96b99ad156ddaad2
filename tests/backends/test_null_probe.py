"""The null backend under the probe suite: what a plug-in's own test file looks like, and what is null's alone."""

from __future__ import annotations

from typing import ClassVar

import pytest

import hwal_null
from hwal.choose import choose
from hwal.detect import detect
from hwal.errors import HwalError
from hwal.host import RecordedHost, Recording
from hwal.registry import Registry
from hwal.testing.probes import Expected, ProbeSuite
from hwal.values import AUTO, Choice, Target


def host(devices: str | None = None) -> RecordedHost:
    return RecordedHost(Recording(env={} if devices is None else {"HWAL_NULL_DEVICES": devices}))


def chosen(text: str, on: RecordedHost) -> Choice:
    registry = Registry(on)
    target = Target.parse(text, registry.names)
    return choose(target, detect(on, registry, target), {name: registry.load(name) for name in registry.names})


class TestNullProbe(ProbeSuite):
    backend = hwal_null.backend
    hosts: ClassVar = {
        "nothing-asked": (host(), Expected(state="absent")),
        "one": (host("1"), Expected(devices=({"id": "null0"},))),
        "three": (host("3"), Expected(devices=({}, {"index": 1, "id": "null1"}, {}), links=("NULL",) * 3)),
        "not-a-number": (host("many"), Expected(state="blocked", says=("HWAL_NULL_DEVICES='many'", "HWAL_NULL_DEVICES=8"))),
    }

    def test_select_keeps_the_order_asked(self) -> None:
        """What follows the colon is a number: all of that many, none picked."""
        assert self.backend.select(Target("null", "3"), self.three()) == self.three().devices


@pytest.mark.parametrize(
    ("text", "variable", "devices"),
    [
        ("null", None, 1),
        ("null:1", None, 1),
        ("null:8", None, 8),
        ("null", "4", 4),
        ("null:2", "4", 2),
        ("null:256", None, 256),
    ],
)
def test_the_target_says_how_many(text: str, variable: str | None, devices: int) -> None:
    choice = chosen(text, host(variable))
    assert choice.backend == "null"
    assert [device.index for device in choice.devices] == list(range(devices))


@pytest.mark.parametrize("spec", ["x", "0", "-1", "1.5", "257", "0,1", "٣", "9" * 5000])
def test_another_spec_is_an_error_of_the_user(spec: str) -> None:
    with pytest.raises(HwalError) as caught:
        chosen(f"null:{spec}", host())
    assert caught.value.exit_code == 2
    assert "is not a number of imaginary devices (1 to 256)" in caught.value.what
    assert caught.value.hint == "--device null:8"


def test_auto_never_takes_it() -> None:
    choice = chosen(AUTO, host("8"))
    assert choice.backend == "cpu"
    assert [(passed.backend, passed.why) for passed in choice.passed_over] == [("null", "only when named")]
