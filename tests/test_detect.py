"""detect: every backend is asked, and whatever one of them does, the others are heard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.backend import Backend
from hwal.detect import detect, facts, read_machine
from hwal.errors import UsageError
from hwal.host import RECORDING, Host, RecordedHost, Recording
from hwal.registry import BUILT_IN, Registry
from hwal.values import Caps, HostFacts, Machine, Probe, Target
from tests.strategies import of

PAPER = RecordedHost(Recording(name="box", machine="riscv64"))


def backend(name: str, answer: Any) -> Backend:
    """A backend whose probe returns `answer`, or raises it; it keeps what it was asked in `asked`."""

    class Fake(Backend):
        priority, extra, caps, runtimes = 1, "torch", Caps(), {}
        asked: list[Target | None] = []  # noqa: RUF012

        def probe(self, host: Host, asked: Target | None = None) -> Probe:
            self.asked.append(asked)
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[no-any-return]

    Fake.name = name
    return Fake()


class Fixed(Registry):
    """A registry of given backends and probes."""

    def __init__(self, *given: Backend | Probe) -> None:
        super().__init__(PAPER)
        self.given = given

    def backends(self) -> Any:
        return iter(self.given)


ERRORS = st.sampled_from(
    [ValueError, OSError, RuntimeError, KeyError, AssertionError, ImportError, RecursionError, MemoryError]
)


@given(answers=st.lists(of(Probe) | st.builds(lambda e, t: e(t), ERRORS, st.text(max_size=8)), max_size=5))
def test_a_probe_that_raises_is_blocked_and_the_others_are_heard(answers: list[Probe | Exception]) -> None:
    answers = [replace(a, backend=f"b{i}") if isinstance(a, Probe) else a for i, a in enumerate(answers)]
    probes = detect(PAPER, Fixed(*(backend(f"b{i}", answer) for i, answer in enumerate(answers))))
    assert len(probes) == len(answers)
    for i, (answer, probe) in enumerate(zip(answers, probes, strict=True)):
        assert probe.ms is not None and probe.ms >= 0
        if isinstance(answer, Exception):
            assert (probe.backend, probe.state) == (f"b{i}", "blocked")
            assert probe.reason == f"its probe failed: {type(answer).__name__}: {answer}"
            assert "report" in (probe.hint or "")
        else:
            assert (probe.reason, probe.state, probe.devices) == (answer.reason, answer.state, answer.devices)


@pytest.mark.parametrize("answer", [None, 42, "ready"])
def test_a_probe_that_returns_no_probe_is_blocked_too(answer: Any) -> None:
    probe = detect(PAPER, Fixed(backend("odd", answer)))[0]
    assert (probe.backend, probe.state) == ("odd", "blocked")
    assert f"it answered {answer!r}, not a Probe of 'odd'" in probe.reason


def test_a_probe_of_another_backends_name_is_blocked() -> None:
    probe = detect(PAPER, Fixed(backend("mine", Probe("yours", "ready", "here"))))[0]
    assert (probe.backend, probe.state) == ("mine", "blocked")
    assert "not a Probe of 'mine'" in probe.reason


def test_ctrl_c_is_no_probe_that_failed() -> None:
    with pytest.raises(KeyboardInterrupt):
        detect(PAPER, Fixed(backend("slow", KeyboardInterrupt())))


def test_only_the_backend_that_is_named_hears_the_target() -> None:
    one, two = (backend(name, Probe(name, "absent", "no")) for name in ("one", "two"))
    target = Target("two", "v5e-8")
    detect(PAPER, Fixed(one, two), target)
    detect(PAPER, Fixed(one, two), None)
    detect(PAPER, Fixed(one, two), Target())
    assert one.asked == [None, None, None]  # type: ignore[attr-defined]
    assert two.asked == [target, None, None]  # type: ignore[attr-defined]


def test_this_machine_answers_for_every_built_in() -> None:
    probes = detect(Host(), Registry(Host()))
    assert {probe.backend for probe in probes} >= set(BUILT_IN)
    assert not [probe for probe in probes if probe.reason.startswith("its probe failed")]
    machine = Machine(facts(Host()), probes)
    assert Machine.from_json(machine.to_json()) == machine


def test_facts_are_the_hosts() -> None:
    assert facts(PAPER) == HostFacts("box", "linux", "riscv64")


# reading a machine


@given(machine=of(Machine))
def test_a_machine_is_read_from_its_file(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    path.write_text(machine.to_json(), encoding="utf-8")
    assert read_machine(str(path)) == machine


def test_a_recorded_host_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / RECORDING).write_text(PAPER.recording.to_json())
    host = read_machine(str(tmp_path))
    assert isinstance(host, RecordedHost) and host.recording == PAPER.recording


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"\xff\xfe\x00", "it is not text in UTF-16"),
        (b"GPU0\ncaf\xe9", "line 2"),
        (b"\n\n", "it is empty"),
        (b"\nhello\n", "line 2"),
        (b"{", "not JSON"),
        (b"{}", "hwal devices --json"),
        (json.dumps({"probes": [], "devices": 3}).encode(), "'devices' is not a list"),
    ],
)
def test_what_is_no_machine_is_refused_with_its_path(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "machine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_machine(str(path))
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recorded host"):
        read_machine(str(tmp_path))
