"""How a run shows itself on stderr: a bar on a terminal, a line now and then elsewhere, or nothing (HWAL_PROGRESS)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

EVERY = 10.0  # seconds between two lines where there is no terminal


class Display(ABC):
    """Called from the training thread and the reporter's; every method is safe from both."""

    @abstractmethod
    def update(self, step: int, total: int | None, loss: Any, rate: float, unit: str) -> None:
        """A step is done; `rate` is `unit` per second in that step."""

    @abstractmethod
    def say(self, text: str) -> None:
        """One line that stays."""

    @abstractmethod
    def close(self, failed: bool) -> None: ...
