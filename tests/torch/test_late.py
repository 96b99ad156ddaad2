"""Numbers that are read late: in groups, old ones first, all when somebody must know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from hwal_torch.late import Lates  # noqa: E402


class Device:
    """Stands for a device: remembers how many numbers each reading asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def read(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        self.asked.append(len(tensors))
        return [float(tensor) for tensor in tensors]


class Elsewhere(torch.Tensor):
    """A scalar that says it is on another device."""

    @staticmethod
    def __new__(cls, value: float) -> Elsewhere:
        return torch.Tensor._make_subclass(cls, torch.tensor(value))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xla", 0)


def test_numbers_of_the_host_pass() -> None:
    lates = Lates(Device().read, every=2)
    assert lates.later(1.5) == 1.5 and lates.later("a word") == "a word"
    assert lates.later(torch.tensor(2.0)) == 2.0


def test_only_what_is_a_generation_old_is_read() -> None:
    device = Device()
    lates = Lates(device.read, every=3)
    seen = []
    for step in range(9):
        seen.append(lates.later(Elsewhere(float(step))))
        assert lates.turn() == (step % 3 == 2)
        ready = [late.value for late in seen if not late.pending]
        assert ready == [float(i) for i in range(max(0, (step + 1) // 3 - 1) * 3)]
    assert device.asked == [3, 3]


def test_asking_one_reads_all_in_one_go() -> None:
    device = Device()
    lates = Lates(device.read, every=2)
    seen = []
    for step in range(5):
        seen.append(lates.later(Elsewhere(float(step))))
        lates.turn()
    assert float(seen[-1]) == 4.0
    assert [late.value for late in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]
    before = list(device.asked)
    lates.settle()
    assert [float(late) for late in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert device.asked == before, "nothing is read twice"
