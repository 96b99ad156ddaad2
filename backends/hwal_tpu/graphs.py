"""Which graphs XLA compiled, for which shapes and at which line of the script: the third rule of training on a TPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Shapes = tuple[tuple[int, ...], ...]
SHOWN = 6  # graphs that are named at the end of a run


@dataclass(frozen=True)
class Graph:
    """One compilation, or several in the same forward.

    Attributes:
        count: how many graphs. step: of the run, from 1. shapes: of the batch at that time. line: of the script.
        again: whether a batch of these shapes had been seen before, two steps or more ago.
    """

    count: int
    step: int
    shapes: Shapes
    line: str
    again: bool


class Graphs:
    """Attributes:
    compiled: in their order. known: how many graphs these are.
    """

    def __init__(self, known: int = 0) -> None:
        """`known`: graphs that the process has compiled before the run."""
        self.compiled: list[Graph] = []
        self._seen: dict[Shapes, int] = {}  # how many forwards had these shapes
        self.known = known
        self._shapes: Shapes = ()

    def begin(self, batch: Any) -> None:
        """A batch goes to the script."""
        self._shapes = shapes_of(batch)
        self._seen[self._shapes] = self._seen.get(self._shapes, 0) + 1

    def look(self, compiled: int, step: int, line: str) -> None:
        """A graph has been started. `compiled`: graphs of the process so far."""
        if compiled > self.known:
            again = self._seen.get(self._shapes, 0) > 2  # the second forward has the optimizer's state for the first time
            self.compiled.append(Graph(compiled - self.known, step, self._shapes, line, again))
            self.known = compiled

    def summary(self, steps: int) -> list[str]:
        """What to say at the end of a run of so many steps."""
        if not self.compiled:
            return []
        total = sum(graph.count for graph in self.compiled)
        by_shapes: dict[Shapes, list[Graph]] = {}
        for graph in self.compiled:
            by_shapes.setdefault(graph.shapes, []).append(graph)
        lines = [f"XLA compiled {total} graph{'s' * (total != 1)} in {steps} steps, for {len(by_shapes)} shapes of batches"]
        for shapes, graphs in list(by_shapes.items())[:SHOWN]:
            at = ", ".join(str(graph.step) for graph in graphs[:SHOWN]) + (" …" if len(graphs) > SHOWN else "")
            lines.append(f"  {shown(shapes)}: {sum(graph.count for graph in graphs)}, in step {at}, {graphs[-1].line}")
        if len(by_shapes) > SHOWN:
            lines.append(f"  and {len(by_shapes) - SHOWN} more shapes")
        if len(by_shapes) > SHOWN:
            lines.append("  each new shape costs a compilation: pad lengths, rt.pad_to_multiple_of says to what")
        elif any(graph.again for graph in self.compiled):
            worst = next(graph for graph in self.compiled if graph.again)
            lines.append(
                f"  step {worst.step} compiled again for shapes seen before: a number of the script's went into the graph there"
            )
        return lines


def shapes_of(batch: Any) -> Shapes:
    """The shapes of the tensors in a batch, each once, in their order."""
    return tuple(dict.fromkeys(tuple(leaf.shape) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)))


def shown(shapes: Iterable[tuple[int, ...]]) -> str:
    return " ".join("×".join(map(str, shape)) or "scalar" for shape in shapes) or "no batch"
