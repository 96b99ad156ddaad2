"""Random state as a function of (seed, place in the run), so that it need not be saved."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A 63-bit seed from integers, each bit of it depending on all of them (splitmix64, S. Vigna's public-domain constants).

    torch's CPU generator keeps the low 32 bits only, so they must not be a plain sum.
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def seed_host(seed: int) -> None:
    """Seeds Python's, NumPy's (where it is loaded) and torch's CPU generator.

    Through the default generator: torch.manual_seed also visits every accelerator module, at 100 times the cost.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs its body under `seed` and puts the three generators back."""
    numpy_random = sys.modules.get("numpy.random")
    before = (
        random.getstate(),
        torch.default_generator.get_state(),
        numpy_random.get_state() if numpy_random is not None else None,
    )
    try:
        seed_host(seed)
        yield
    finally:
        random.setstate(before[0])
        torch.default_generator.set_state(before[1])
        if numpy_random is not None:
            numpy_random.set_state(before[2])
