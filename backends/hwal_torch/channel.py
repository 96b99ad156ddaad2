"""How ranks talk beside training: a process group of its own, so that a checkpoint in the making never meets a gradient."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist

LIMIT = timedelta(days=1)  # a large checkpoint on a slow disk takes hours; a dead rank is noticed at once, by its connection

T = TypeVar("T")


class Channel:
    """From rank 0 to all others. In a world of one it says everything to itself."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @cached_property
    def group(self) -> dist.ProcessGroup | None:
        """The process group, of the host's memory. Made when all ranks first ask for it, on their main threads."""
        return dist.new_group(backend="gloo", timeout=LIMIT) if self.size > 1 else None

    def share(self, value: T | None = None) -> T:
        """Rank 0's value, on every rank."""
        box: list[Any] = [value]
        if self.group is not None:
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """All ranks' values in their order, on every rank."""
        box: list[Any] = [value] * self.size
        if self.group is not None:
            dist.all_gather_object(box, value, group=self.group)
        return box

    def all(self, word: bool) -> bool:
        """Whether all ranks say so; every rank calls it."""
        if self.group is None:
            return word
        words = torch.tensor(int(word))
        dist.all_reduce(words, dist.ReduceOp.MIN, group=self.group)
        return bool(words)

    def ask(self, question: Callable[[], T]) -> T:
        """What `question` answers on rank 0, on every rank; or its exception."""
        answer: Any = None
        if self.rank == 0:
            try:
                answer = question()
            except Exception as error:
                answer = error
        answer = self.share(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Lets go of the group."""
        self.__dict__.pop("group", None)
