"""The training and evaluation feeds of a run: each forward's batch, seeds, sums and place in its global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hwal.watch.pulse import DATA, EVALUATING, SCRIPT, TRAINING
from hwal_torch.feed import read
from hwal_torch.reading import Reading, length
from hwal_torch.seeding import mix, seed_host
from hwal_torch.trouble import never_stepped, other_batch
from hwal_torch.units import Unit

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime


Put = Callable[[Any], Any] | None  # what is done to a batch before the script has it


class Left(NamedTuple):
    """A forward in which the script left a feed; `trains`: a training feed."""

    unit: Unit
    batch: Any
    trains: bool


class Loop:
    """Attributes:
    unit: the forward that is at work in a training feed; None outside of one.
    left: the one in which the script left a feed, an evaluation within a training feed before that; None once training goes on.
    """

    def __init__(self, rt: SharedTorchRuntime) -> None:
        self._rt = rt
        self.unit: Unit | None = None
        self.left: Left | None = None
        self._batch: Any = None  # of the unit

    @property
    def at_work(self) -> Left | None:
        """The forward that is at work; where the script has just left a feed, the one in which it did."""
        return self.left or (None if self.unit is None else Left(self.unit, self._batch, trains=True))

    def train(self, data: Any, put: Put) -> Iterator[Any]:
        """The batches of a training feed, from where the run goes on."""
        rt = self._rt
        at = rt.progress
        skip = at.begin_feed()
        if skip is None or rt.finished:
            return
        if rt.ending.agreed():
            rt.preempt()
        if rt.job.settings.global_batch is not None:
            size = getattr(data, "batch_size", None)
            rt.say_once(f"--global-batch {rt.job.settings.global_batch} in place of the loader's {size}")
        batches = length(data, rt.job.settings.global_batch)
        self._check_batch(data, skip, batches)
        rt.reporter.total_steps = at.steps_in_all(batches)
        rt.host_random.rest(mix(at.seed, 2, rt.dp_rank, at.epoch, at.feed))
        self._seed_step()
        rt.reporter.begin()
        if rt.search is not None:
            rt.search.begin(data)
        rt.pulse.source, rt.pulse.phase = data, DATA
        try:
            yield from self._micro_batches(data, self._reading(skip), put)
            while rt.search is not None and rt.search.grown():
                yield from self._micro_batches(data, self._reading(at.steps_in_feed), put)
        finally:
            self.left = self.at_work
            self.unit = self._batch = None
            rt.pulse.phase = SCRIPT
            if rt.gradients.waiting:  # the script left the loop within a global batch
                rt.gradients.waiting = False
                for optimizer in rt.optimizers:
                    optimizer.zero_grad(set_to_none=True)
        self.rest()  # not where the script left the feed: it may have failed, and its peers have been killed
        at.end_feed()
        rt.ending.turn()

    def rest(self) -> None:
        """No forward of training is at work from here on."""
        if self._rt.search is not None:
            self._rt.search.at_work(False)

    def resume(self) -> None:
        """Training goes on, where it was at work before."""
        if self._rt.search is not None and self.unit is not None:
            self._rt.search.at_work(True)

    def evaluate(self, data: Any, put: Put) -> Iterator[Any]:
        """The batches of an evaluation feed, which may lie within a training one."""
        rt = self._rt
        unit, training, pulse = self.unit, rt.strategy.training, rt.pulse
        phase, source = pulse.phase, pulse.source
        self.unit, rt.strategy.training = None, False
        self.rest()
        vote = rt.ending.vote()
        pulse.source, pulse.phase = data, DATA
        try:
            for rows, batch in read(data, self._reading(None), rt.say_once):
                if rt.ending.agreed() if vote is None else vote.ends():
                    rt.preempt()
                pulse.count += 1
                pulse.phase, self.left = EVALUATING, Left(rows, batch, trains=False)
                yield batch if put is None else put(batch)
                pulse.phase = DATA
        finally:
            if pulse.phase != EVALUATING:  # it was read to its end
                self.left = None
            if vote is not None:
                vote.leave()
            pulse.source, pulse.phase = source, phase
            self.unit, rt.strategy.training = unit, training
            self.resume()
            rt.strategy.rest()

    def _micro_batches(self, data: Any, reading: Reading, put: Put) -> Iterator[Any]:
        rt = self._rt
        gradients, at, pulse, strategy = rt.gradients, rt.progress, rt.pulse, rt.strategy
        for unit, batch in read(data, reading, rt.say_once, pulse.tick):
            if unit.part is not None:
                self._seed_part(unit.part)
            strategy.sync(unit)
            gradients.open(unit, strategy)
            self.unit, self._batch, self.left = unit, batch, None
            pulse.count += 1
            pulse.phase = TRAINING
            yield batch if put is None else put(batch)
            pulse.phase = DATA
            self.unit = None
            if unit.last:
                if gradients.waiting:
                    raise never_stepped()
                if left := gradients.close(rt.optimizers):
                    name = type(left[0]).__name__
                    rt.say_once(f"{name} is not stepped in every global batch: it learns nothing of the others")
                if gradients.stop:
                    rt.preempt()
                if at.step & (at.step - 1) == 0:
                    rt.host_random.look()
                self._seed_step()
                if at.finished or (rt.search is not None and rt.search.step()):
                    break

    def _reading(self, skip: int | None) -> Reading:
        """How to read a training feed of which `skip` global batches are done; None for an evaluation."""
        rt = self._rt
        at = rt.progress
        train = skip is not None
        return Reading(
            cut=rt.cut,
            seed=mix(at.seed, at.epoch, at.feed) if train else mix(at.seed),
            train=train,
            skip=skip or 0,
            global_batch=rt.job.settings.global_batch if train else None,
            pin_memory=rt.job.caps.pinned_memory,
        )

    def _check_batch(self, data: Any, skip: int, batches: int | None) -> None:
        """A pass that stopped within is skipped by global batches: they must be those that were trained on."""
        rt = self._rt
        size = rt.job.settings.global_batch or getattr(data, "batch_size", None)
        before, rt.global_batch = rt.global_batch, size
        before_all, rt.batches = rt.batches, batches
        if rt.gradients.count is None and before and size and before != size:  # a run that was just resumed
            rt.say(f"the global batch is {size} now, {before} when the checkpoint was saved: the curve goes on as another")
        elif rt.gradients.count is None and before_all and batches and before_all != batches:
            rt.say(f"a pass over the data has {batches} batches now, {before_all} when the checkpoint was saved")
        done = rt.progress.samples_in_feed
        if skip and size and not (skip - 1) * size < done <= skip * size:
            raise other_batch(skip, done, size)

    def _seed_step(self) -> None:
        """What main-process data sets and forwards draw in the next step is a function of (seed, step, rank)."""
        rt = self._rt
        if rt.host_random.drawn:
            seed_host(mix(rt.progress.seed, 0, rt.dp_rank, rt.progress.step))
        if not rt.on_host:
            rt.seed_device(mix(rt.progress.seed, 0, rt.dp_rank, rt.progress.step))

    def _seed_part(self, part: int) -> None:
        """What the forward of a virtual rank draws is a function of (seed, step, part), on whatever rank it runs."""
        seed = mix(self._rt.progress.seed, 1, part, self._rt.progress.step)
        seed_host(seed)
        self._rt.seed_device(seed)
