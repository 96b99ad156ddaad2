"""Every Record prints as JSON and reads back; what is not its JSON is refused, and the place named."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.checkpoint import Manifest
from hwal.errors import RecordError
from hwal.record import Record
from hwal.topology import Device, Link
from hwal.values import Choice, Launch, Machine, Plan, Probe, Request, Target, World
from tests.strategies import all_records, of

RECORDS = all_records()
every_record = pytest.mark.parametrize("cls", RECORDS, ids=lambda c: c.__name__)
WRONG = {"\x00wrong": [[]]}  # the JSON of no field: not text, number, list or null; as an object, its one key fits none


def test_the_vocabulary_is_among_the_records_found() -> None:
    assert {Target, Device, Link, Probe, Choice, Plan, Launch, World, Request, Machine, Manifest} <= set(RECORDS)


@every_record
@given(data=st.data())
def test_json_both_ways(cls: type[Record], data: st.DataObject) -> None:
    value = data.draw(of(cls))
    assert cls.from_json(value.to_json()) == value
    assert cls.from_json(value.to_json(indent=1)) == value
    assert cls.from_dict(json.loads(value.to_json())).to_dict() == value.to_dict()


@every_record
@given(data=st.data())
def test_frozen_through_and_through(cls: type[Record], data: st.DataObject) -> None:
    value = data.draw(of(cls))
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
        if isinstance(mapping := getattr(value, field.name), Mapping):
            with pytest.raises(TypeError):
                mapping["new"] = 1  # type: ignore[index]


@every_record
@given(data=st.data())
def test_equal_values_are_interchangeable(cls: type[Record], data: st.DataObject) -> None:
    value = data.draw(of(cls))
    twin = pickle.loads(pickle.dumps(value))
    assert twin == value == dataclasses.replace(value)  # type: ignore[type-var]
    if cls is not Manifest:  # its `about` is the framework's own, and may hold lists
        assert hash(twin) == hash(value)


def test_the_callers_dict_is_not_the_records() -> None:
    native = {"bf16": "AMX-BF16"}
    device = Device("cpu", 0, native=native)
    native["fp16"] = "none"
    assert dict(device.native) == {"bf16": "AMX-BF16"}


@every_record
@given(data=st.data())
def test_unknown_key(cls: type[Record], data: st.DataObject) -> None:
    document = data.draw(of(cls)).to_dict()
    with pytest.raises(RecordError, match="unknown key 'nosuchkey'") as caught:
        cls.from_dict({**document, "nosuchkey": 1}, "FILE")
    assert caught.value.where == "FILE"


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(RecordError, match="unknown key 'bandwith' in Link") as caught:
        Link.from_dict({"a": 0, "b": 1, "class": "NV4", "bandwith": 1})
    assert caught.value.hint == "did you mean 'bandwidth'?"


@every_record
@given(data=st.data())
def test_missing_key(cls: type[Record], data: st.DataObject) -> None:
    document = data.draw(of(cls)).to_dict()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = field.metadata.get("json", field.name)
        without = {key: value for key, value in document.items() if key != name}
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if optional and cls not in (Plan, Machine):  # whose fields depend on each other
            cls.from_dict(without)
        elif not optional:
            with pytest.raises(RecordError, match=name) as caught:
                cls.from_dict(without, "FILE")
            assert caught.value.where == "FILE"


def places(document: Any, path: str = "FILE") -> list[tuple[str, Any, Any]]:
    """(path, container, key) of everything inside a document."""
    if isinstance(document, dict):
        items: list[tuple[Any, str]] = [(key, f"{path}.{key}") for key in document]
    elif isinstance(document, list):
        items = [(i, f"{path}[{i}]") for i in range(len(document))]
    else:
        return []
    found = []
    for key, inner in items:
        found += [(inner, document, key), *places(document[key], inner)]
    return [place for place in found if not place[0].startswith(("FILE.about", "FILE.drivers"))]  # typed Any


@every_record
@given(data=st.data())
def test_a_wrong_type_anywhere_is_refused_and_its_path_named(cls: type[Record], data: st.DataObject) -> None:
    document = json.loads(data.draw(of(cls)).to_json())
    path, container, key = data.draw(st.sampled_from(places(document)))
    container[key] = WRONG
    with pytest.raises(RecordError) as caught:
        cls.from_dict(document, "FILE")
    assert (caught.value.where or "").startswith(path)


@every_record
@given(text=st.text() | st.recursive(st.none() | st.booleans() | st.integers(), st.lists).map(json.dumps))
def test_garbage_is_a_record_error(cls: type[Record], text: str) -> None:
    with pytest.raises(RecordError):
        cls.from_json(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_cannot_print_are_not_read(number: str) -> None:
    with pytest.raises(RecordError):
        Probe.from_json(f'{{"backend": "cpu", "state": "ready", "reason": "", "ms": {number}}}')


def test_absurd_nesting_is_a_record_error() -> None:
    with pytest.raises(RecordError, match="not JSON"):
        Target.from_json("[" * 100_000)


def test_bool_is_no_int_and_int_is_a_float() -> None:
    assert Probe.from_dict({"backend": "cpu", "state": "ready", "reason": "", "ms": 3}).ms == 3.0
    with pytest.raises(RecordError, match="expected int, got true"):
        World.from_dict({"rank": True})


def test_a_long_wrong_value_is_cut_short_in_the_message() -> None:
    with pytest.raises(RecordError) as caught:
        World.from_dict({"rank": "x" * 500})
    assert len(str(caught.value)) < 120
