"""What is said of compilations."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hwal.env import XLA_CACHE  # noqa: E402
from hwal.values import World  # noqa: E402
from hwal_tpu.graphs import EVALUATION, Graphs, cache_of  # noqa: E402


def run(shapes: list[tuple[int, int]], compiles: dict[int, int]) -> list[str]:
    """A run whose step i has a batch of shapes[i] and compiles so many graphs."""
    graphs, known = Graphs(known=3), 3
    for step, shape in enumerate(shapes):
        graphs.begin({"ids": torch.zeros(shape), "labels": torch.zeros(shape)}, "first last", step + 1)
        known += compiles.get(step, 0)
        graphs.look(known, f"train.py:{step}, in main")
    return graphs.summary(len(shapes))


def test_nothing_compiled_nothing_said() -> None:
    assert run([(2, 4)] * 3, {}) == []


def test_each_shape_is_named_with_its_steps_and_line() -> None:
    told = run([(2, 4), (2, 4), (2, 5), (2, 4)], {0: 1, 1: 1, 2: 1})
    assert told == [
        "XLA compiled 3 graphs in 4 steps, for 2 shapes of batches",
        "  2×4: 2, in step 1, 2, train.py:1, in main",
        "  2×5: 1, in step 3, train.py:2, in main",
    ]


def test_what_the_script_compiles_between_its_feeds_is_no_steps() -> None:
    graphs = Graphs()
    graphs.between(3)
    graphs.begin(torch.zeros(2, 4), "first last", 1)
    graphs.look(4, "train.py:7, in main")
    assert graphs.summary(1)[0] == "XLA compiled 1 graph in 1 steps, for 1 shape of batches; and 3 outside of rt.feed"


def test_many_shapes_are_told_to_be_padded() -> None:
    told = run([(2, length) for length in range(20)], dict.fromkeys(range(20), 1))
    assert told[0] == "XLA compiled 20 graphs in 20 steps, for 20 shapes of batches"
    assert told[-2] == "  and 14 more" and "rt.pad_to_multiple_of" in told[-1]


def test_a_graph_that_changes_with_equal_shapes_is_named() -> None:
    told = run([(2, 4)] * 5, {0: 1, 1: 1, 3: 1})
    assert told[-1].startswith("  step 4 compiled again for shapes seen before")


def test_each_place_of_a_forward_has_its_graphs() -> None:
    """Gradients are made in the first forward of a step, used in the last; an evaluation makes none: nothing is to blame."""
    graphs, known = Graphs(), 0
    for step in range(4):
        for place in ("first ", "", "", "last"):
            graphs.begin(torch.zeros(2, 4), place, step + 1)
            known += step < 2 and place != ""
            graphs.look(known, "train.py:7, in main")
    for _ in range(2):
        graphs.begin(torch.zeros(2, 4), EVALUATION, 4)
        known += 1
        graphs.look(known, "train.py:9, in main")
    assert graphs.summary(4) == [
        "XLA compiled 6 graphs in 4 steps, for 1 shape of batches",
        "  2×4: 4, in step 1, 1, 2, 2, train.py:7, in main",
        "  2×4: 2, in an evaluation after step 4, 4, train.py:9, in main",
    ]


def test_where_graphs_are_kept() -> None:
    home = {"XDG_CACHE_HOME": "/cache"}
    assert cache_of(home, World(), virtual=False) == Path("/cache/hwal/xla")
    assert cache_of(home, World(), virtual=True) is None
    assert cache_of({**home, XLA_CACHE: "off"}, World(), virtual=False) is None
    assert cache_of({XLA_CACHE: "/own"}, World(), virtual=True) == Path("/own")
    assert cache_of({XLA_CACHE: "/own"}, World(5, 8, 1, 4, "torchrun"), virtual=False) == Path("/own/process-1")
