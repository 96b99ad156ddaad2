"""Which graphs XLA compiled, for which shapes and at which line of the script: the third rule of training on a TPU. And where
they are kept from run to run, since a TPU's take minutes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hwal.env import XLA_CACHE, cache_folder
from hwal.values import World

Shapes = tuple[tuple[int, ...], ...]
SHOWN = 6  # graphs that are named at the end of a run
OFF = "off"
EVALUATION = "evaluation"  # where a forward may be; any other place is one in a step


@dataclass(frozen=True)
class Graph:
    """One compilation, or several in the same forward.

    Attributes:
        count: how many graphs. step: of the run, from 1. shapes: of the batch at that time. place: of the forward.
        line: of the script. again: whether two steps before had such a batch at such a place already.
    """

    count: int
    step: int
    shapes: Shapes
    place: str
    line: str
    again: bool


class Graphs:
    """Attributes:
    compiled: in their order. known: how many graphs the process has compiled by now. outside: how many of them between feeds.
    """

    def __init__(self, known: int = 0) -> None:
        """`known`: graphs that the process has compiled before the run."""
        self.compiled: list[Graph] = []
        self.known = known
        self.outside = 0
        self._seen: dict[tuple[Shapes, str], tuple[int, int]] = {}  # -> (steps that had it, the last of them)
        self._at: tuple[Shapes, str] = (), ""
        self._step = 0

    def begin(self, batch: Any, place: str, step: int) -> None:
        """A batch goes to the script. `place`: of its forward, EVALUATION or where in its step, since each is a graph of its
        own. `step`: in which it is, after which it evaluates."""
        self._at, self._step = (shapes_of(batch), place), step
        steps, last = self._seen.get(self._at, (0, -1))
        self._seen[self._at] = steps + (step != last), step

    def look(self, compiled: int, line: str) -> None:
        """A graph has been started. `compiled`: graphs of the process so far."""
        if compiled > self.known:
            steps, _ = self._seen.get(self._at, (0, -1))
            again = steps > 2  # the second step has the optimizer's state for the first time
            self.compiled.append(Graph(compiled - self.known, self._step, *self._at, line, again))
            self.known = compiled

    def between(self, compiled: int) -> None:
        """A feed begins: what has been compiled since the last one is of the script's own making."""
        self.outside += compiled - self.known
        self.known = compiled

    def summary(self, steps: int) -> list[str]:
        """What to say at the end of a run of so many steps."""
        if not self.compiled:
            return []
        total = sum(graph.count for graph in self.compiled)
        groups: dict[tuple[Shapes, bool], list[Graph]] = {}
        for graph in self.compiled:
            groups.setdefault((graph.shapes, graph.place == EVALUATION), []).append(graph)
        shapes = len({graph.shapes for graph in self.compiled})
        what = f"{shapes} shape{'s' * (shapes != 1)} of batches"
        lines = [f"XLA compiled {total} graph{'s' * (total != 1)} in {steps} steps, for {what}"]
        lines[0] += f"; and {self.outside} outside of rt.feed" if self.outside else ""
        for (shape, evaluated), graphs in list(groups.items())[:SHOWN]:
            at = ", ".join(str(graph.step) for graph in graphs[:SHOWN]) + (" …" if len(graphs) > SHOWN else "")
            where = f"in an evaluation after step {at}" if evaluated else f"in step {at}"
            lines.append(f"  {shown(shape)}: {sum(graph.count for graph in graphs)}, {where}, {graphs[-1].line}")
        if len(groups) > SHOWN:
            lines.append(f"  and {len(groups) - SHOWN} more")
        if shapes > SHOWN:
            lines.append("  each new shape costs a compilation: pad lengths, rt.pad_to_multiple_of says to what")
        elif (worst := next((graph for graph in self.compiled if graph.again), None)) is not None:
            lines.append(
                f"  step {worst.step} compiled again for shapes seen before: a number of the script's went into the graph there"
            )
        return lines


def shapes_of(batch: Any) -> Shapes:
    """The shapes of the tensors in a batch, each once, in their order."""
    return tuple(dict.fromkeys(tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)))


def shown(shapes: Iterable[tuple[int, ...]]) -> str:
    return " ".join("×".join(map(str, shape)) or "scalar" for shape in shapes) or "no batch"


def cache_of(environ: Mapping[str, str], world: World, virtual: bool) -> Path | None:
    """Where this process keeps its graphs, each of several on a host its own; None where it keeps none.

    XLA's CPU platform does not read back what it has written (torch_xla 2.8.1: "Deserializing serialized executable not
    supported"), so that it is used there only where the variable names a folder.
    """
    asked = environ.get(XLA_CACHE)
    if asked == OFF or (asked is None and virtual):
        return None
    path = Path(asked).expanduser() if asked else cache_folder(environ) / "xla"
    return path / f"process-{world.local_rank}" if world.local_size > 1 else path


def make_cache(path: Path) -> str | None:
    """Makes the folder; why it cannot be written to, if so."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"compiled graphs are not kept: {path}: {error.strerror}"
    return None if os.access(path, os.W_OK) else f"compiled graphs are not kept: {path} cannot be written to"
