"""Progress: where training stands, counted the same way for every framework's loop."""

from __future__ import annotations

from collections.abc import Iterator

from hwal.checkpoint import Position


class Progress:
    """The counters of a run, those before a resume included.

    Attributes:
        seed: the run's. Random state is a function of it and of the counters.
        epoch: the epoch in progress. feed: the training feed of it in progress. steps_in_feed, samples_in_feed: global
            batches and samples of that feed that are done. step, samples: those done in all. All count from 0.
        last_step: the step at which training ends, where the loop was given one.
    """

    def __init__(self, seed: int, world_size: int) -> None:
        self.seed = seed
        self.epoch = self.feed = self.steps_in_feed = self.step = self.samples = 0
        self.last_step: int | None = None
        self._world_size = world_size
        self.samples_in_feed = 0
        self._feeds_begun = 0
        self._exhausted = False  # the feed in progress was read to its end
        self._before_end: tuple[int, int, int, int] | None = None  # where it stood then, until the script begins another
        self._epochs: int | None = None
        self._in_epochs = False

    @property
    def in_epochs(self) -> bool:
        """Whether a loop over epochs() is in progress."""
        return self._in_epochs

    @property
    def finished(self) -> bool:
        return self.last_step is not None and self.step >= self.last_step

    def epochs(self, count: int | None, last_step: int | None) -> Iterator[int]:
        """The epochs that are left of `count`, until `last_step` is done.

        That step leaves its epoch open, even where it is the last of it: more steps, asked for later, go on right there.
        """
        self.last_step, self._epochs, self._in_epochs = last_step, count, True
        self._feeds_begun = 0
        try:
            while (count is None or self.epoch < count) and not self.finished:
                yield self.epoch
                self._before_end = None
                if not self.finished:
                    self.end_epoch()
        finally:
            self._in_epochs, self.last_step = False, None

    def begin_feed(self) -> int | None:
        """A training feed begins: the number of its global batches that are done already; None: nothing of it is left to do."""
        number, self._feeds_begun = self._feeds_begun, self._feeds_begun + 1
        if number < self.feed or self.finished:
            return None
        self._exhausted, self._before_end = False, None
        if number > self.feed:
            self.feed, self.steps_in_feed, self.samples_in_feed = number, 0, 0
        return self.steps_in_feed

    def end_step(self, samples: int) -> None:
        self.step += 1
        self.steps_in_feed += 1
        self.samples += samples
        self.samples_in_feed += samples

    def end_feed(self) -> None:
        """A training feed was read to its end; outside of epochs() that ends the epoch."""
        self._exhausted = not self.finished
        self._before_end = self.epoch, self.feed, self.steps_in_feed, self.samples_in_feed
        if not self._in_epochs:
            self.end_epoch()

    def reopen(self) -> bool:
        """Goes back behind the last step, if the script has read a feed to its end and begun no other: what it does in
        between, an evaluation say, will be done again. Whether it has."""
        if self._before_end is None:
            return False
        self.epoch, self.feed, self.steps_in_feed, self.samples_in_feed = self._before_end
        self._exhausted = False
        return True

    def end_epoch(self) -> None:
        self.epoch += 1
        self.feed = self.steps_in_feed = self.samples_in_feed = self._feeds_begun = 0
        self._exhausted = False

    def leave_epoch(self) -> None:
        """The epoch in progress is over, whatever is left of it; a loop over epochs() breaks here."""
        self._before_end = None
        self.end_epoch()

    def steps_in_all(self, feed_length: int | None) -> int | None:
        """How many steps the run will have, as a feed of `feed_length` global batches begins; None where nobody knows."""
        if self.last_step is not None or feed_length is None:
            return self.last_step
        epochs_left = self._epochs - self.epoch if self._in_epochs and self._epochs is not None else 1
        return self.step - self.steps_in_feed + epochs_left * feed_length

    def position(self) -> Position:
        """Where a run resumed from now begins. After the feed of an epoch that is the next epoch: what a script does then,
        a schedule's step or an evaluation, is done once, before it saves."""
        if self._in_epochs and self._exhausted:
            return Position(self.seed, self.epoch + 1, 0, 0, 0, self.step, self.samples, self._world_size)
        place = (self.epoch, self.feed, self.steps_in_feed, self.samples_in_feed)
        return Position(self.seed, *place, self.step, self.samples, self._world_size)

    def restore(self, position: Position) -> None:
        """Goes on from a checkpoint's position, with its seed: another would break the curve."""
        self.seed = position.seed
        self.epoch, self.feed = position.epoch, position.feed
        self.steps_in_feed, self.samples_in_feed = position.steps_in_feed, position.samples_in_feed
        self.step, self.samples = position.step, position.samples
