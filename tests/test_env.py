"""HWAL_* variables: settings go through the environment unchanged, and what is wrong is named."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.env import PRECISIONS, SETTINGS, Settings, spelled, strangers, variables
from hwal.errors import UsageError

WORDS = st.from_regex(r"[a-z0-9:/._-]{1,12}", fullmatch=True)
COUNTS = st.none() | st.integers(1, 1 << 40)
SECONDS = st.none() | st.floats(min_value=1e-3, max_value=1e9)

legal = st.builds(
    Settings,
    seed=st.integers(),
    precision=st.sampled_from(PRECISIONS),
    strategy=WORDS,
    global_batch=COUNTS,
    micro_batch=COUNTS | st.just("auto"),
    virtual_ranks=COUNTS,
    grad_checkpoint=st.booleans(),
    compile=st.booleans(),
    deterministic=st.booleans(),
    out=st.none() | WORDS,
    resume=st.none() | WORDS,
    keep=st.none() | WORDS,
    hang_timeout=SECONDS | st.just("off"),
    start_timeout=SECONDS,
    on_nan=st.sampled_from(["stop", "skip"]),
    no_fallback=st.booleans(),
)


@given(value=legal)
def test_settings_through_the_environment(value: Settings) -> None:
    environ = value.to_environ()
    assert Settings.from_environ(environ) == value
    assert all(name.startswith("HWAL_") for name in environ)


def test_defaults_need_no_variable() -> None:
    assert Settings().to_environ() == {}
    assert Settings.from_environ({}) == Settings()
    assert Settings.from_environ({"HWAL_PRECISION": ""}) == Settings()


def test_every_setting_is_a_field_and_every_field_a_setting() -> None:
    assert {s.field for s in SETTINGS} == {f.name for f in dataclasses.fields(Settings)}
    for setting in SETTINGS:
        assert setting.flag == "--" + setting.variable.removeprefix("HWAL_").lower().replace("_", "-")
        assert setting.help


@given(text=st.text(max_size=8), setting=st.sampled_from(SETTINGS))
def test_any_text_is_a_setting_or_a_usage_error_that_names_the_variable(text: str, setting: object) -> None:
    variable = setting.variable  # type: ignore[attr-defined]
    try:
        Settings.from_environ({variable: text})
    except UsageError as error:
        assert variable in str(error)
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("HWAL_PRECISION", "bf61", "did you mean 'bf16'"),
        ("HWAL_GLOBAL_BATCH", "0", "must be 1 or more"),
        ("HWAL_GLOBAL_BATCH", "many", "many"),
        ("HWAL_COMPILE", "yes", "must be one of 0, 1"),
        ("HWAL_HANG_TIMEOUT", "-1", "must be more than 0"),
        ("HWAL_HANG_TIMEOUT", "nan", "must be more than 0"),
        ("HWAL_HANG_TIMEOUT", "inf", "finite"),
        ("HWAL_ON_NAN", "go", "must be one of stop, skip"),
    ],
)
def test_wrong_values(variable: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_environ({variable: text})
    assert said in str(caught.value)


def test_strangers_are_told_with_the_nearest_variable() -> None:
    assert strangers({"HWAL_PRECISON": "bf16", "HOME": "/", **dict.fromkeys(variables(), "1")}) == [
        "HWAL_PRECISON is set, but hwal has no such variable; did you mean HWAL_PRECISION?"
    ]
    assert strangers({"HWAL_ZZZZZZZZ": "1"}) == ["HWAL_ZZZZZZZZ is set, but hwal has no such variable"]


def test_a_setting_is_spelled_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    by_flag, by_variable = {"HWAL_PLAN": "{}"}, {"HWAL_OUT": "runs/a"}
    assert spelled("micro_batch", 8, by_flag) == "--micro-batch 8"
    assert spelled("grad_checkpoint", None, by_flag) == "--grad-checkpoint"
    assert spelled("micro_batch", 8, by_variable) == "HWAL_MICRO_BATCH=8"
    assert spelled("grad_checkpoint", None, by_variable) == "HWAL_GRAD_CHECKPOINT=1"
    monkeypatch.setenv("HWAL_PLAN", "")
    assert spelled("on_nan", "skip") == "HWAL_ON_NAN=skip"
    monkeypatch.setenv("HWAL_PLAN", "{}")
    assert spelled("on_nan", "skip") == "--on-nan skip"
