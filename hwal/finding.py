"""Finding: something about a machine that a person should know before they train on it."""

from __future__ import annotations

from typing import Literal

from hwal.record import Record, dataclass

LEVELS = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding(Record):
    """What is wrong with `subject` ("cuda 3", "torch"), by which `evidence`, what follows from it, and what to do.

    An error stops a run or spoils it; a warning costs speed; a note is good to know.
    """

    level: Literal["error", "warning", "note"]
    subject: str
    what: str
    evidence: str
    consequence: str
    remedy: str
