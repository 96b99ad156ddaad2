"""choose: against an oracle that tries everything, and the words of its reasons and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.backend import Backend
from hwal.choose import choose, describe
from hwal.errors import DeviceError
from hwal.host import Host
from hwal.topology import Device
from hwal.values import AUTO, Caps, Choice, Probe, Target
from tests.strategies import probes

NAMES = ("alpha", "beta", "gamma", "delta")


def backend(called: str, preferred: int | None) -> Backend:
    class Fake(Backend):
        name, priority, extra, caps, runtimes = called, preferred, "torch", Caps(), {}

        def probe(self, host: Host, asked: Target | None = None) -> Probe:
            raise AssertionError("choose asks no probe")

    return Fake()


@st.composite
def situations(draw: st.DrawFn) -> tuple[Target, tuple[Probe, ...], dict[str, Backend]]:
    """What detect can give: one probe a backend, a clash's blocked one perhaps, some backends that did not load."""
    priorities = {name: draw(st.none() | st.integers(0, 3)) for name in NAMES}
    lost = draw(st.sets(st.sampled_from(NAMES), max_size=1))
    backends = {name: backend(name, priority) for name, priority in priorities.items() if name not in lost}
    found = [draw(probes(name)) for name in NAMES]  # a ready one without a backend: a file of another machine
    if draw(st.booleans()):
        found.append(Probe(draw(st.sampled_from(NAMES)), "blocked", "two packages claim this name"))
    target = Target(draw(st.sampled_from([AUTO, *NAMES])))
    return target, tuple(found), backends


@given(situation=situations())
def test_auto_and_named_against_the_oracle(situation: tuple[Target, tuple[Probe, ...], dict[str, Backend]]) -> None:
    target, found, backends = situation
    try:
        choice: Choice | None = choose(target, found, backends)
    except DeviceError as error:
        choice = None
        assert f"--device {target}" in str(error)
    ready = {probe.backend: probe for probe in found if probe.state == "ready" and probe.devices}
    if target.backend != AUTO:
        wanted = ready.get(target.backend) if target.backend in backends else None
    else:
        ranked = [(backends[name].priority, -i, name) for i, name in enumerate(ready) if name in backends]
        ranked = [row for row in ranked if row[0] is not None]
        wanted = ready[max(ranked)[2]] if ranked else None  # type: ignore[type-var]
    if wanted is None:
        assert choice is None
        return
    assert choice is not None
    assert (choice.target, choice.backend, choice.devices) == (target, wanted.backend, wanted.devices)
    if target.backend == AUTO:
        others = [probe for probe in found if probe is not wanted and probe.state != "absent"]
        assert [passed.backend for passed in choice.passed_over] == [probe.backend for probe in others]
        for passed, probe in zip(choice.passed_over, others, strict=True):
            assert passed.why
            assert probe.state != "blocked" or probe.reason in passed.why


@given(situation=situations(), seed=st.randoms(use_true_random=False))
def test_the_order_of_probes_decides_ties_only(situation: tuple[Any, ...], seed: Any) -> None:
    _, found, backends = situation
    shuffled = list(found)
    seed.shuffle(shuffled)

    def priority_of(order: Any) -> int | None:
        try:
            return backends[choose(Target(), order, backends).backend].priority  # type: ignore[no-any-return]
        except DeviceError:
            return None

    assert priority_of(found) == priority_of(shuffled)


DEVICES = tuple(Device("alpha", index, "Imagined One", f"GPU-{index}") for index in range(4))
READY = Probe("alpha", "ready", "four of them", devices=DEVICES)
BLOCKED = Probe("beta", "blocked", "driver 535 is too old for CUDA 13", "install driver 580")
ABSENT = Probe("gamma", "absent", "no /dev/gamma")
BACKENDS = {name: backend(name, priority) for name, priority in (("alpha", 10), ("beta", 80), ("gamma", 60))}


def test_the_words_of_auto() -> None:
    choice = choose(Target(), (READY, BLOCKED, ABSENT), BACKENDS)
    assert choice.why == "4 × Imagined One, priority 10"
    assert str(choice).endswith("passed over: beta (blocked: driver 535 is too old for CUDA 13; install driver 580)")


def test_a_blocked_device_that_is_named_says_what_to_do() -> None:
    with pytest.raises(DeviceError, match="beta is blocked: driver 535") as caught:
        choose(Target("beta"), (READY, BLOCKED, ABSENT), BACKENDS)
    assert caught.value.hint == "install driver 580"
    assert caught.value.exit_code == 2


def test_an_absent_device_that_is_named_says_what_is_there() -> None:
    with pytest.raises(DeviceError) as caught:
        choose(Target("gamma", "0"), (READY, BLOCKED, ABSENT), BACKENDS)
    assert str(caught.value).splitlines() == [
        "no gamma device on this machine; ready here: alpha (4 × Imagined One)",
        "  where: --device gamma:0",
        "  why:   no /dev/gamma",
        "  try:   --device alpha, or --device auto",
    ]


def test_nothing_anywhere() -> None:
    with pytest.raises(DeviceError, match="no device can be used") as caught:
        choose(Target(), (BLOCKED, ABSENT), BACKENDS)
    assert caught.value.why == "beta: driver 535 is too old for CUDA 13"
    assert caught.value.hint == "install driver 580"
    with pytest.raises(DeviceError, match="no device can be used"):
        choose(Target(), (), {})


def test_a_backend_without_priority_is_taken_only_when_named() -> None:
    quiet = {"alpha": backend("alpha", None)}
    with pytest.raises(DeviceError):
        choose(Target(), (READY,), quiet)
    assert choose(Target("alpha"), (READY,), quiet).devices == DEVICES


@given(picked=st.lists(st.sampled_from(range(4)), min_size=1, unique=True), by_id=st.booleans())
def test_devices_are_picked_in_the_order_that_was_asked(picked: list[int], by_id: bool) -> None:
    spec = ", ".join(f"GPU-{i}" if by_id else str(i) for i in picked)
    choice = choose(Target("alpha", spec), (READY,), BACKENDS)
    assert [device.index for device in choice.devices] == picked


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("4", "alpha has no device '4'; there are 0 (GPU-0), 1 (GPU-1), 2 (GPU-2), 3 (GPU-3)"),
        ("0,", "alpha has no device ''"),
        ("0-3", "alpha has no device '0-3'"),
        ("1,GPU-1", "device 'GPU-1' is named twice"),
    ],
)
def test_devices_that_cannot_be_picked(spec: str, said: str) -> None:
    with pytest.raises(DeviceError) as caught:
        choose(Target("alpha", spec), (READY,), BACKENDS)
    assert said in caught.value.what
    assert caught.value.where == f"--device alpha:{spec}"


def test_a_ready_backend_without_devices() -> None:
    empty = Probe("alpha", "ready", "the driver is there, no device is")
    with pytest.raises(DeviceError, match="leaves no device"):
        choose(Target("alpha"), (empty,), BACKENDS)


def test_describe_counts_by_name_and_names_the_nameless() -> None:
    assert describe(DEVICES) == "4 × Imagined One"
    assert describe([*DEVICES, Device("cpu", 0)]) == "4 × Imagined One, 1 × cpu device"
    assert describe([]) == ""
