"""The line at which a thread is, as its user would name it, and what it waits for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hwal.watch
from hwal.watch.spot import Library, Signs, Spot

SIGNS = Signs(("job.collectives",), ("engine",), ("job.compiler",), {"_train": "rt.feed"})
LIBRARY = str(Path(hwal.watch.__file__).parent / "imagined.py")  # a file among hwal's own


def stack(*functions: tuple[str, str, str]) -> FrameType:
    """The innermost frame of functions that call each other: (module, name, file), the outermost first."""
    found: list[FrameType] = []
    inner: Callable[[], Any] = lambda: found.append(sys._getframe(1))  # noqa: E731
    for module, name, path in reversed(functions):
        scope: dict[str, Any] = {"__name__": module, "inner": inner}
        exec(compile(f"def {name}():\n    inner()", path, "exec"), scope)
        inner = scope[name]
    inner()
    return found[0]


def spot(*functions: tuple[str, str, str]) -> Spot:
    return Library().spot(stack(*functions), SIGNS)


MAIN = ("__main__", "main", "/home/me/train.py")


def test_the_innermost_line_of_the_users_own() -> None:
    assert spot(MAIN) == Spot("train.py:2, in main")
    assert spot(MAIN, ("mine.rows", "read", "/home/me/rows.py")) == Spot("rows.py:2, in read")
    assert spot(MAIN, ("json", "loads", LIBRARY)) == Spot("train.py:2, in main")


@pytest.mark.parametrize(
    ("inner", "waits"),
    [
        ([("hwal_torch.runtime", "step", LIBRARY)], "rt.step"),
        ([("hwal_torch.runtime", "_train", LIBRARY), ("hwal_torch.stopping", "agreed", LIBRARY)], "rt.feed"),
        ([("hwal_torch.gradients", "backward", LIBRARY), ("autograd", "engine", LIBRARY)], "rt.backward"),
        ([("hwal_torch.gradients", "backward", LIBRARY), ("torch.nn", "linear", LIBRARY)], None),
        ([("job.collectives.log", "wrapper", LIBRARY), ("job.collectives", "barrier", LIBRARY)], "job.collectives.barrier"),
        ([("job.collectives.shards._state", "_pre_forward", LIBRARY), ("torch.nn", "call", LIBRARY)], "job.collectives.shards"),
        ([("torch.nn", "forward", LIBRARY)], None),
        ([("hwal_torch.runtime", "step", LIBRARY), ("mine", "hook", "/home/me/hook.py")], None),
    ],
)
def test_what_a_rank_waits_in(inner: list[tuple[str, str, str]], waits: str | None) -> None:
    assert spot(MAIN, *inner).waits == waits


def test_compilers_and_debuggers_are_known() -> None:
    assert spot(MAIN, ("job.compiler.inductor", "lower", LIBRARY)).compiling
    assert spot(MAIN, ("pdb", "interaction", LIBRARY)).debugging
    assert not spot(("pdb", "main", LIBRARY), MAIN).debugging, "the script runs under one, and is not at its prompt"


def test_faulthandlers_text_is_read_the_same_way() -> None:
    text = f'Stack (most recent call first):\n  File "{LIBRARY}", line 9 in wait\n  File "/home/me/rows.py", line 3 in read\n'
    assert Library().dumped(text) == "rows.py:3, in read"
    assert Library().dumped(f'  File "{LIBRARY}", line 9 in wait\n') == "imagined.py:9, in wait"
    assert Library().dumped("Fatal Python error") is None


def test_hwals_own_work_for_a_script_is_known_in_faulthandlers_text() -> None:
    """Not what runs the script, at the other end of the stack."""
    work, mine, worker = (f'  File "{path}", line 9 in it\n' for path in (LIBRARY, "/home/me/train.py", LIBRARY))
    stdlib = f'  File "{Path(json.__file__)}", line 3 in dumps\n'
    assert Library().is_ours(work + mine + worker)
    assert Library().is_ours(stdlib + work + mine + worker), "it may call others in turn"
    assert not Library().is_ours(mine + worker)
    assert not Library().is_ours(stdlib + mine + worker)
    assert not Library().is_ours("")
