"""The epochs that a resumed run has behind it, as a call of fit tells them in its History: read from metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwal.reporter import FILE, OWN

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime


def behind(rt: SharedKerasRuntime, first: int, end: int) -> list[tuple[int, dict[str, float]]]:
    """Of the run's epochs from `first` on, before `end`, those that were done before the resume: the number of each and its
    logs. None of them where metrics.jsonl does not lie where the checkpoint's run has it."""
    found = rt.found
    if found is None or first >= min(end, rt.epoch):
        return []
    lines = _lines(found.folder.parent.parent / FILE, found.manifest.position.step)
    epochs = groupby((line for line in lines if first <= line["epoch"] < min(end, rt.epoch)), lambda line: line["epoch"])
    return [(epoch, _logs(list(steps))) for epoch, steps in epochs]


def _lines(path: Path, last: int) -> Iterator[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return
    for line in text.splitlines():
        try:
            fields = json.loads(line)
        except ValueError:  # cut short by a kill
            return
        if fields["step"] > last:
            return
        yield fields


def _logs(steps: list[Mapping[str, Any]]) -> dict[str, float]:
    """What an epoch's last line has, and as its loss the mean over the rows, as Keras counts it."""
    known = [(step["loss"] * step["samples"], step["samples"]) for step in steps if isinstance(step["loss"], float)]
    logs = {name: value for name, value in steps[-1].items() if name not in OWN and isinstance(value, int | float)}
    if rows := sum(samples for _, samples in known):
        logs = {"loss": sum(loss for loss, _ in known) / rows, **logs}
    return logs
