"""Seeds as a function of (seed, place in the run), so that random state need not be saved."""

from __future__ import annotations

MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A 63-bit seed from integers, each bit of it depending on all of them (splitmix64, a public-domain generator).

    Generators that keep the low 32 bits only are why it is no plain sum.
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1
