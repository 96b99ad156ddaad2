"""--keep: which checkpoints stay."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.checkpoint import Checkpoints, Manifest, Position
from hwal.errors import UsageError
from hwal.retention import Best, Keep, kept, lower_is_better, metrics_for, read_keep

RULES: Mapping[str | None, Keep] = {
    None: Keep(3),
    "": Keep(3),
    "last:1": Keep(1),
    "last:12": Keep(12),
    "all": Keep(None),
    "best:eval_loss": Keep(1, (Best("eval_loss", True, False),)),
    "best:accuracy": Keep(1, (Best("accuracy", False, False),)),
    "last:2,best:accuracy:min": Keep(2, (Best("accuracy", True, True),)),
    "best:a:max,last:4,best:val/wer": Keep(4, (Best("a", False, True), Best("val/wer", True, False))),
}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules(rule: str | None) -> None:
    assert read_keep(rule) == RULES[rule]


@pytest.mark.parametrize(
    "rule",
    [
        "last",
        "last:0",
        "last:-1",
        "last:²",
        "first:3",
        "ALL",
        "last:3 ",
        "best",
        "best:",
        "best:a:least",
        "last:1,last:2",
        "all,last:1",
    ],
)
def test_rules_that_are_none(rule: str) -> None:
    with pytest.raises(UsageError, match="is not a rule") as caught:
        read_keep(rule)
    assert "last:N" in (caught.value.why or "") and caught.value.hint


@pytest.mark.parametrize("metric", ["loss", "eval_loss", "val/ppl", "testError", "MSE", "bits_per_byte", "wer"])
def test_lower_is_better(metric: str) -> None:
    assert lower_is_better(metric)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "BLEU", "lossless_share", "top5", "reward"])
def test_higher_is_better(metric: str) -> None:
    assert not lower_is_better(metric)


VALUES = st.sampled_from([None, -1.0, 0.0, 0.0, 2.5, inf, -inf, nan])
SAVED = st.dictionaries(st.integers(1, 12), st.tuples(VALUES, VALUES), min_size=1)
BEST = st.builds(Best, st.sampled_from(["a", "b"]), st.booleans(), st.booleans())
KEEPS = st.builds(Keep, st.none() | st.integers(1, 4), st.lists(BEST, max_size=2).map(tuple))


@given(keep=KEEPS, values=SAVED, data=st.data())
def test_kept_against_an_oracle(keep: Keep, values: dict[int, tuple[float | None, float | None]], data: st.DataObject) -> None:
    """One step at a time: a step stays when it is the one written, among the newest, or beaten by none."""
    saved = {step: {n: v for n, v in zip("ab", pair, strict=True) if v is not None} for step, pair in values.items()}
    written = data.draw(st.sampled_from(sorted(saved)))
    damaged = frozenset(data.draw(st.sets(st.sampled_from(sorted(saved)))) - {written})

    def newest(step: int) -> bool:
        newer = [other for other in saved if other > step and other != written]
        return keep.last is None or step == written or len(newer) < keep.last - 1

    def wins(step: int, best: Best) -> bool:
        def value(at: int) -> float | None:
            number = saved[at].get(best.metric)
            if number is None or not isfinite(number) or at in damaged:
                return None
            return number if best.lowest else -number

        mine = value(step)
        rivals = [(value(other), other) for other in saved if other != step]
        return mine is not None and all(theirs is None or (mine, step) < (theirs, other) for theirs, other in rivals)

    expected = {step for step in saved if newest(step) or any(wins(step, best) for best in keep.best)}
    assert kept(keep, saved, written, damaged) == expected


def test_metrics_and_what_is_told() -> None:
    told: list[str] = []
    keep = read_keep("best:eval_loss,best:accuracy,best:speed:max,best:note,best:gap:min")
    found = metrics_for(keep, {"eval_loss": 2, "accuracy": nan, "note": "text", "gap": "1"}, told.append)
    assert found == {"eval_loss": 2.0, "gap": 1.0}
    assert [line for line in told if "lower is better" in line] == [
        "--keep best:eval_loss: lower is better, by its name; best:eval_loss:max says the opposite"
    ]
    assert sum("higher is better" in line for line in told) == 2  # accuracy and note
    assert [line.split(":")[1] for line in told if "no number was logged" in line] == ["speed", "note"]


def save(store: Checkpoints, step: int, **metrics: float) -> None:
    position = Position(42, 0, 0, step, step, step, step, 1)
    with store.writing(store.path(step), lambda files: Manifest(position, files, "torch", metrics=metrics)) as folder:
        (folder / "weights").write_text(str(step))


def steps(store: Checkpoints) -> list[int]:
    return [int(path.name[5:]) for path in store.found()]


def test_the_best_stays_on_disk_and_over_a_resume(tmp_path: Path) -> None:
    losses = {1: 5.0, 2: 1.5, 3: 4.0, 4: 1.5, 5: 3.0}
    store = Checkpoints(tmp_path, "last:2,best:loss")
    for step, loss in losses.items():
        save(store, step, loss=loss)
    assert steps(store) == [5, 4, 2], "of two equal ones the earlier"
    again = Checkpoints(tmp_path, "last:2,best:loss")
    for step in (6, 7):
        save(again, step)
    assert steps(again) == [7, 6, 2], "one without the metric is none"
    save(again, 8, loss=1.0)
    assert steps(again) == [8, 7]


def test_a_damaged_best_is_none(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, "last:1,best:loss")
    save(store, 1, loss=2.0)
    save(store, 2, loss=1.0)
    save(store, 3, loss=3.0)
    assert steps(store) == [3, 2]
    (store.path(2) / "weights").write_text("damaged")
    (store.path(3) / "weights").write_text("damaged")
    assert store.newest(lambda text: None) is None
    save(store, 4, loss=2.5)
    assert steps(store) == [4]
