"""Hypothesis strategies for every Record: derived from the types of its fields, except where a value has rules of its own."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from math import prod
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

import hwal
from hwal.record import Record
from hwal.registry import BUILT_IN
from hwal.topology import Device, Link
from hwal.values import AXES, FASTEST, Choice, Decision, HostFacts, Machine, Plan, Probe, Process, Wrap

TEXT = st.text(max_size=12)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
BACKENDS = st.sampled_from(sorted(BUILT_IN)) | NAMES


def all_records() -> list[type[Record]]:
    """Every Record class that hwal's modules define."""
    for module in pkgutil.walk_packages(hwal.__path__, "hwal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, todo = [], [Record]
    while todo:
        subclasses = todo.pop().__subclasses__()
        todo += subclasses
        found += [c for c in subclasses if c.__module__.partition(".")[0] == "hwal"]
    return sorted(set(found), key=lambda c: (c.__module__, c.__qualname__))


@cache
def of(cls: type[Record]) -> st.SearchStrategy[Any]:
    """Values of a Record class."""
    if cls in SPECIAL:
        return SPECIAL[cls]
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: of_type(hints[field.name]) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return JSON
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, of_type(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Record):
        return of(kind)
    plain = {NoneType: st.none(), str: TEXT, int: st.integers(), float: FLOATS, bool: st.booleans()}
    return plain[kind]


@st.composite
def probes(draw: st.DrawFn, backend: str | None = None, state: str | None = None) -> Probe:
    """A probe whose devices are its backend's, numbered from 0, with a link for every pair."""
    backend = draw(BACKENDS) if backend is None else backend
    state = draw(st.sampled_from(["absent", "ready", "blocked"])) if state is None else state
    count = draw(st.integers(0, 3)) if state == "ready" else 0
    devices = tuple(
        dataclasses.replace(draw(of(Device)), backend=backend, index=index, id=f"id{index}") for index in range(count)
    )
    links = tuple(
        dataclasses.replace(draw(of(Link)), backend=backend, a=a, b=b, bandwidth=draw(st.none() | st.floats(0, FASTEST)))
        for a in range(count)
        for b in range(a + 1, count)
    )
    hint, ms = draw(st.none() | TEXT), draw(st.none() | FLOATS)
    return Probe(backend, state, draw(TEXT), hint, ms, devices, links, draw(of_type(tuple[str, ...])))  # type: ignore[arg-type]


def machine_probes() -> st.SearchStrategy[tuple[Probe, ...]]:
    """Probes of backends with different names, as a registry without clashes gives them."""
    return st.lists(probes(), max_size=4, unique_by=lambda probe: probe.backend).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans whose mesh fills the world."""
    mesh = draw(st.dictionaries(st.sampled_from(AXES), st.integers(1, 3), max_size=3))
    total = prod(mesh.values())
    nodes = draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    local = total // nodes
    per_process = draw(st.sampled_from([n for n in range(1, local + 1) if local % n == 0]))
    devices = tuple(dataclasses.replace(draw(of(Device)), index=index) for index in range(local))
    processes = tuple(
        dataclasses.replace(
            draw(of(Process)), local_rank=rank, devices=tuple(range(rank * per_process, (rank + 1) * per_process))
        )
        for rank in range(local // per_process)
    )
    decisions = [draw(of(Decision)) for _ in range(3)]
    micro_batch = draw(st.none() | st.integers(1, 64) | st.just("auto"))
    wrap, notes = draw(st.none() | of(Wrap)), draw(of_type(tuple[str, ...]))
    return Plan(draw(BACKENDS), decisions[0], devices, processes, mesh, *decisions[1:], micro_batch, nodes, wrap, notes)


SPECIAL: dict[type[Record], st.SearchStrategy[Any]] = {
    Probe: probes(),
    Plan: plans(),
    Machine: st.builds(
        Machine, st.deferred(lambda: of(HostFacts)), machine_probes(), st.none() | st.deferred(lambda: of(Choice))
    ),
}
