"""Answer: what was chosen, how good its worst link is, and how far that is proven."""

from __future__ import annotations

from hwal.record import Record, dataclass


@dataclass(frozen=True)
class Answer(Record):
    """Positions in the list of devices that was asked about.

    Attributes:
        places: the devices chosen, in order; blocks of `size` where groups were asked for.
        size: devices in a block; None where there are no blocks.
        objective: what was maximised, most important first.
        bottleneck: class of the worst link in use; None where none is.
        exact: whether nothing better exists by the whole objective.
        why: the proof, or how far it goes, in a sentence.
        assumed: speeds in GB/s that no driver reported, by class: they weigh only between answers of equal classes.
        certified: whether no other answer has a better worst link, where `exact` is not known.
        total: the sum that was maximised, in MB/s (`pack`: the allocator's score).
    """

    places: tuple[int, ...]
    objective: str
    bottleneck: str | None
    exact: bool
    why: str
    size: int | None = None
    assumed: tuple[str, ...] = ()
    total: int = 0
    certified: bool = False

    @property
    def proof(self) -> str:
        """How far the worst link is proven to be the best there can be."""
        return "proven" if self.exact else "proven, the rest is not" if self.certified else "not proven to be the best"

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        step = self.size or len(self.places) or 1
        return tuple(self.places[i : i + step] for i in range(0, len(self.places), step))
