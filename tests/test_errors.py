"""Errors: how they print, what they exit with, and that every class is in the module's own picture."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal import errors
from hwal.errors import HwalError, Preempted, TargetError, UsageError, nearest

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, HwalError)]


def test_the_whole_of_an_error() -> None:
    error = TargetError("unknown device 'cdua'", where="--device cdua", why="no such backend", hint="did you mean cuda?")
    assert str(error).splitlines() == [
        "unknown device 'cdua'",
        "  where: --device cdua",
        "  why:   no such backend",
        "  try:   did you mean cuda?",
    ]


def test_rows_that_say_nothing_are_left_out() -> None:
    assert str(HwalError("it broke")) == "it broke"
    assert str(HwalError("it broke", hint="mend it")) == "it broke\n  try:   mend it"


@given(what=st.text(), where=st.none() | st.text(), why=st.none() | st.text(), hint=st.none() | st.text())
def test_nothing_that_was_said_is_lost(what: str, where: str | None, why: str | None, hint: str | None) -> None:
    error = HwalError(what, where=where, why=why, hint=hint)
    assert str(error).startswith(what)
    for label, text in (("where", where), ("why", why), ("try", hint)):
        assert not text or re.search(rf"^  {label}: +{re.escape(text)}", str(error), re.MULTILINE)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_the_docstring_tells_every_class_and_its_exit_code(cls: type[HwalError]) -> None:
    """The picture's exit code stands in the class's own row, or in that of the class above it."""
    picture = errors.__doc__ or ""
    for ancestor in cls.__mro__:
        row = re.search(rf"\b{ancestor.__name__}\b(?: +exit (\d+))?", picture)
        assert row is not None
        if row.group(1):
            assert int(row.group(1)) == cls.exit_code
            return
    raise AssertionError(f"no exit code for {cls.__name__}")


def test_exit_codes() -> None:
    assert (errors.EXIT_OK, errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_PREEMPTED) == (0, 1, 2, 75)
    assert UsageError.exit_code == 2
    assert Preempted().code == 75
    assert not isinstance(Preempted(), Exception)


@given(known=st.lists(st.from_regex(r"[a-z]{4,8}", fullmatch=True), min_size=1, unique=True), data=st.data())
def test_nearest_knows_every_name_itself_in_any_case(known: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(known))
    assert nearest(name, known) == name
    assert nearest(name.upper(), known) == name


@given(text=st.text(), known=st.lists(st.text()))
def test_nearest_is_one_of_the_known_or_none(text: str, known: list[str]) -> None:
    found = nearest(text, known)
    assert found is None or found in known


def test_nearest_does_not_guess_wildly() -> None:
    assert nearest("qqqq", ["cuda", "cpu"]) is None
    assert nearest("cdua", ["cuda", "cpu"]) == "cuda"
