"""Passes: how often each dataset of a script has been begun.

A dataset that is shuffled anew for each pass draws its order when a pass begins, from a generator of its own that nobody can
set. So a resumed run begins as many passes as its checkpoint has behind it, and then has the order of the run that was not
interrupted. Each of them fills the shuffle's buffer once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from weakref import ref

import tensorflow as tf

from hwal.progress import Progress

Place = tuple[int, int]  # the epoch of a loop of the script's, and which of its feeds
ANYWHERE = (-1, -1)  # what earlier checkpoints say of it, which have their datasets in the order of their first feeds


@dataclass
class Pass:
    """What has been drawn of a dataset at once.

    Attributes:
        batches: global batches, where passes follow each other in one go; None for a single pass, whose order is drawn with
            its first batch. fit: of such a call of fit, the run's epoch in which it begins.
    """

    batches: int | None = None
    fit: int | None = None


@dataclass
class Known:
    """A dataset.

    Attributes:
        place: that of its first feed in the latest epoch of a loop; None where it was first given to a fit, or outside of one.
        behind: passes of the checkpoint that are still to be drawn. passes: those of this run.
        fresh: whether it was made in an epoch of a loop. parts: then the numbers of older ones that it is made of, whose
            passes are its own.
    """

    data: ref[Any]
    place: Place | None = None
    behind: list[Pass] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    fresh: bool = False
    parts: list[int] = field(default_factory=list)


class Passes:
    """Datasets are known by the place at which rt.feed is first given them; it is their Feed that keeps them, not this.

    One that is made in an epoch of the script's loop is that epoch's; what it is made of may be older.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._known: list[Known] = []
        self._saved: list[tuple[Place | None, list[Pass]]] = []
        self._latest = (-1, -1)  # the last place that was given
        self._loop_began = 0

    def resume(self, saved: Sequence[Any]) -> None:
        """`saved`: what to_save gave."""
        self._saved = [_read(one) for one in saved]
        for known in self._known:  # before rt.prepare
            known.behind = self._take(known.place)

    def loop_begins(self) -> None:
        """What is made from now on is made within a loop over epochs."""
        self._loop_began = _age(tf.constant(0))

    def number(self, data: Any) -> int:
        """Which of the script's datasets it is."""
        number = self._find(data)
        if number is not None and self._known[number].fresh:
            return number
        if self._progress.in_epochs and _age(data._variant_tensor) > self._loop_began:
            parts = [self._number(part) for part in _older(data, self._loop_began)]
            self._known.append(Known(ref(data), fresh=True, parts=parts))
            return len(self._known) - 1
        return self._number(data)

    def _find(self, data: Any) -> int | None:
        return next((number for number, known in enumerate(self._known) if known.data() is data), None)

    def _number(self, data: Any) -> int:
        number, epoch = self._find(data), self._progress.epoch
        if number is None:
            place = self._next_place(epoch) if self._progress.in_epochs else None
            self._known.append(Known(ref(data), place, self._take(place)))
            return len(self._known) - 1
        known = self._known[number]
        if self._progress.in_epochs and known.place is not None and known.place[0] < epoch:
            known.place = self._next_place(epoch)
        return number

    def _next_place(self, epoch: int) -> Place:
        self._latest = (epoch, self._latest[1] + 1 if self._latest[0] == epoch else 0)
        return self._latest

    def _take(self, place: Place | None) -> list[Pass]:
        """What a checkpoint has of the dataset at this place, or at the same one of the latest epoch before."""
        fits = [one for one in self._saved if _same(one[0], place)]
        if not fits:
            return []
        found = max(fits, key=lambda one: one[0] or (0, 0))  # the first, where none has a place
        self._saved.remove(found)
        return found[1]

    def begin(self, number: int, data: Any = None, batches: int | None = None, fit: int | None = None) -> None:
        """A pass of a dataset begins; before it those that a resumed run has behind it.

        Args:
            data, batches, fit: as Pass has them, of passes that follow each other: what they are drawn of, and how many
                batches. Of the same call of fit those before the resume are not behind it.
        """
        for one in self._known[number].parts or [number]:
            known = self._known[one]
            if fit is not None and known.behind and known.behind[-1].fit == fit:
                known.behind.pop()
            for behind in known.behind:
                _draw(self._alive(one) if behind.batches is None or data is None else data, behind)
            known.passes += known.behind
            known.behind = []
            known.passes.append(Pass(batches, fit))

    def drawn(self, number: int, batches: int) -> None:
        """Of the passes that were begun last, in one go, as many batches have been taken by now."""
        for one in self._known[number].parts or [number]:
            self._known[one].passes[-1].batches = batches

    def skip(self, number: int) -> None:
        """A pass of a dataset of which nothing is left to do begins and ends."""
        self.begin(number)
        for one in self._known[number].parts or [number]:
            _draw(self._alive(one), Pass())

    def missed(self, number: int) -> None:
        """A feed that was read before the resume is not read again: of a dataset of this epoch's that is a pass."""
        if self._known[number].fresh and not self._known[number].parts:
            self.skip(number)

    def _alive(self, number: int) -> Any:
        data = self._known[number].data()
        assert data is not None  # its Feed is being read
        return data

    def to_save(self, unfinished: int | None) -> list[Any]:
        """Of each dataset its place, and the passes that are behind a run which goes on from here; that of `unfinished` it
        begins again."""
        again = set() if unfinished is None else set(self._known[unfinished].parts or [unfinished])
        saved = []
        for number, known in enumerate(self._known):
            passes = known.behind + known.passes
            if number in again and passes and passes[-1].batches is None:
                passes = passes[:-1]
            if not known.fresh:
                saved.append([known.place, list(_written(passes))])
        return saved


def _same(saved: Place | None, place: Place | None) -> bool:
    if saved is None or place is None or saved == ANYWHERE:
        return saved is place or saved == ANYWHERE
    return saved[1] == place[1] and saved[0] <= place[0]


def _age(tensor: Any) -> int:
    """A number that grows from tensor to tensor. Not public; tried with TensorFlow 2.21."""
    return int(tensor._id)


def _older(data: Any, than: int) -> list[Any]:
    """The parts of a dataset that were made before, each the largest."""
    if _age(data._variant_tensor) <= than:
        return [data]
    return [part for one in data._inputs() for part in _older(one, than)]


def _draw(data: Any, one: Pass) -> None:
    """Has a dataset draw the order of a pass, or of as many as had these batches."""
    if one.batches is None:
        next(iter(data), None)
        return
    for _ in data.repeat().take(one.batches):
        pass


def _written(passes: Sequence[Pass]) -> Iterator[Any]:
    """For JSON: the number of single passes, and [batches, fit] of the others, in their order."""
    for single, group in groupby(passes, lambda one: one.batches is None):
        if single:
            yield len(list(group))
        else:
            yield from ([one.batches, one.fit] for one in group)


def _read(saved: Any) -> tuple[Place | None, list[Pass]]:
    if isinstance(saved, int):
        return ANYWHERE, [Pass() for _ in range(saved)]
    place, written = saved
    passes: list[Pass] = []
    for one in written:
        passes += [Pass() for _ in range(one)] if isinstance(one, int) else [Pass(one[0], one[1])]
    return None if place is None else (place[0], place[1]), passes
