"""How a run ends when it is asked to: where its ranks agree outside of steps, and which moment is saved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hwal.errors import OutputError
from hwal.watch.pulse import SAVING
from hwal_torch.vote import Vote

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime


class Ending:
    """Asks all ranks, and remembers what the moment to be saved is made of.

    Attributes:
        store: the world's; None in a world of one.
    """

    def __init__(self, rt: SharedTorchRuntime) -> None:
        self._rt = rt
        self.store: Store | None = None
        self._evaluations = (0, 0)  # at which step the last began, and how many had begun there before
        self._turn: tuple[list[Any], list[dict[str, Any]]] | None = None
        self._last: Any = None

    # whether to end

    def agreed(self) -> bool:
        """Whether any rank was asked to end. Returns when every rank has asked this."""
        return self.any(self._rt.stop_request.name is not None)

    def any(self, word: bool) -> bool:
        """Whether any rank says so. Returns when every rank has called this."""
        if self._rt.world_size > 1:
            told = torch.tensor([float(word)], device=self._rt.collective_device)
            dist.all_reduce(told)
            word = bool(told)
        return word

    def vote(self) -> Vote | None:
        """How the ranks agree within an evaluation; None where they reach its batches together, and can just ask."""
        (before, count), step = self._evaluations, self._rt.steps_done
        self._evaluations = step, count + 1 if step == before else 0
        if self.store is None or self._rt.cut.equal or self._rt.dp_size == 1:
            return None
        name = "evaluation/{}/{}".format(*self._evaluations)
        return Vote(self.store, self._rt.world_size, name, lambda: self._rt.stop_request.name is not None)

    # what to save

    def turn(self) -> None:
        """A training feed was read to its end. What the script does next, an evaluation or a schedule's step, is done again
        by a run that is asked to end meanwhile: schedules, and what they set, are saved as they are here."""
        schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler in self._rt.schedulers]
        self._turn = schedules, [{key: value for key, value in group.items() if key != "params"} for group in self._groups()]

    def rewind(self) -> None:
        """Goes back behind the last step, unless the script has begun another feed since."""
        if not self._rt.progress.reopen() or self._turn is None:
            return
        schedules, options = self._turn
        for scheduler, state in zip(self._rt.schedulers, schedules, strict=True):
            scheduler.load_state_dict(state)
        for group, values in zip(self._groups(), options, strict=True):
            group.update(values)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._rt.optimizers for group in optimizer.param_groups]

    def has_saved(self, folder: Path) -> None:
        """A checkpoint of this moment is in `folder`, or will be."""
        self._last = self._moment(folder)

    def saved(self) -> Path | None:
        """The run's checkpoint of this very moment, once it is whole; None where there is none. Every rank calls it.

        Raises what the last save failed for, where that is why the run ends and nobody asked it to.
        """
        rt = self._rt
        failed: Exception | None = None
        with rt.pulse.during(SAVING):  # the time that the save takes is its own
            try:
                rt.saving.wait()
            except Exception as error:
                failed = error
            asked = not rt.channel.all(rt.stop_request.name is None)
            if not rt.channel.all(failed is None):
                self._last = None
                if not asked or not isinstance(failed, OutputError | None):
                    raise failed or OutputError("a checkpoint could not be written", why="another rank says so")
                rt.say(f"{failed.what if failed else 'a checkpoint could not be written'}; once more, before the run ends")
            folder = rt.checkpoints.path(rt.steps_done)
            return folder if rt.channel.ask(lambda: self._last == self._moment(folder)) else None

    def _moment(self, folder: Path) -> Any:
        """Equal for two checkpoints that hold the same. torch counts how often a tensor was changed in place."""
        versions = [p._version for model in self._rt.models for p in model.parameters()]
        schedules = repr([scheduler.state_dict() for scheduler in self._rt.schedulers])
        return folder.resolve(), self._rt.progress.position(), schedules, versions
