"""Random state as a function of (seed, place in the run), so that it need not be saved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from hwal.seeds import mix as mix


def seed_host(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's CPU generator.

    torch's directly: torch.manual_seed also visits every accelerator module, at 100 times the cost.
    """
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs its body under `seed` and puts the three generators back."""
    python, arrays, tensors = random.getstate(), numpy.random.get_state(), torch.default_generator.get_state()
    try:
        seed_host(seed)
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.default_generator.set_state(tensors)


class HostRandom:
    """The three generators of the host during training. Reseeding them every step would cost more than all else that hwal
    does in it, and many scripts never draw from them. So each pass over the data leaves them alone, in a state of its own,
    until a look at them (after steps 1, 2, 4, 8 … and at every checkpoint) finds that somebody drew. From then on they are
    reseeded every step, which checkpoints remember: what they give after resuming is what they would have given.

    Attributes:
        drawn: whether they are reseeded every step.
    """

    def __init__(self) -> None:
        self.drawn = False
        self._untouched: Any = None

    def rest(self, seed: int) -> None:
        """A pass over the data begins."""
        seed_host(seed)
        self._untouched = self._state()

    def look(self) -> None:
        """Notes whether somebody has drawn since rest()."""
        if not self.drawn and self._untouched is not None:
            self.drawn = self._state() != self._untouched

    @staticmethod
    def _state() -> tuple[Any, ...]:
        arrays: Any = numpy.random.get_state()
        tensors = torch.default_generator.get_state()
        return random.getstate(), arrays[1].tobytes(), arrays[2:], tensors.numpy().tobytes()
