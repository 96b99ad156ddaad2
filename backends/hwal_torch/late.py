"""Numbers that a device still computes. A device that works ahead of the host is asked for many at once, and for old ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Late:
    """A scalar on the device, as a number once it has been read; float() of it reads it now, with all others.

    Attributes:
        value: the number; None until it is read.
    """

    __slots__ = ("_all", "value")

    def __init__(self, all_of_them: Lates) -> None:
        self._all = all_of_them
        self.value: float | None = None

    @property
    def pending(self) -> bool:
        """Whether it has not been read."""
        return self.value is None

    def __float__(self) -> float:
        if self.value is None:
            self._all.settle()
        assert self.value is not None
        return self.value


class Lates:
    """The numbers of a run that are not read yet, in two generations: when a younger one is full the older is read, whose
    numbers the device has long finished, so that nobody waits.
    """

    def __init__(self, read: Callable[[Sequence[torch.Tensor]], list[float]], every: int) -> None:
        """`read` fetches scalars of the device at once. `every`: turns from one reading to the next."""
        self._read = read
        self._every = every
        self._turns = 0
        self._old: list[tuple[Late, torch.Tensor]] = []
        self._young: list[tuple[Late, torch.Tensor]] = []

    def later(self, value: Any) -> Any:
        """A Late for one number on the device; anything else itself."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu" or value.numel() != 1:
            return value
        late = Late(self)
        self._young.append((late, value.detach()))
        return late

    def turn(self) -> bool:
        """A step is done. True when numbers have been read, which happens once in `every` turns."""
        self._turns += 1
        if self._turns % self._every:
            return False
        self._fetch(self._old)
        self._old, self._young = self._young, []
        return True

    def settle(self) -> None:
        """Reads all of them."""
        self._fetch(self._old + self._young)
        self._old, self._young = [], []

    def _fetch(self, pairs: list[tuple[Late, torch.Tensor]]) -> None:
        waiting = [(late, tensor) for late, tensor in pairs if late.value is None]
        if not waiting:
            return
        for (late, _), number in zip(waiting, self._read([tensor for _, tensor in waiting]), strict=True):
            late.value = number
