"""rt.feed(pad=…): lengths that are a multiple."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from hwal.errors import ScriptError  # noqa: E402
from hwal_torch.padding import pad  # noqa: E402


@given(st.integers(1, 5), st.integers(1, 200), st.sampled_from([1, 32, 64, 128]))
def test_rows_keep_what_they_hold(rows: int, length: int, multiple: int) -> None:
    batch = {"ids": torch.arange(rows * length).view(rows, length), "size": torch.tensor([1] * rows)}
    longer = pad(batch, {"ids": -100, "size": 0}, multiple)
    assert longer["ids"].shape[1] % multiple == 0 and longer["ids"].shape[1] - length < multiple
    assert torch.equal(longer["ids"][:, :length], batch["ids"]) and (longer["ids"][:, length:] == -100).all()
    assert longer["size"] is batch["size"]


def test_what_lies_behind_the_second_dimension_stays() -> None:
    assert pad({"x": torch.ones(2, 3, 5)}, {"x": 0}, 4)["x"].shape == (2, 4, 5)


def test_a_mapping_of_another_kind_stays_one() -> None:
    from collections import UserDict

    batch = pad(UserDict({"x": torch.ones(1, 3), "y": 7}), {"x": 0}, 4)
    assert isinstance(batch, UserDict) and batch["x"].shape == (1, 4) and batch["y"] == 7


@pytest.mark.parametrize("kind", [tuple, list])
def test_places_of_a_tuple(kind: type) -> None:
    batch = pad(kind([torch.ones(1, 3), torch.ones(1, 3)]), {1: 0}, 4)
    assert type(batch) is kind and [item.shape[1] for item in batch] == [3, 4]


@pytest.mark.parametrize("multiple", [8, None])
@pytest.mark.parametrize("batch", [{"a": torch.ones(1, 1)}, (torch.ones(1, 1),)])
def test_a_name_that_is_not_there(batch: object, multiple: int | None) -> None:
    """Told on every device, also where nothing is padded."""
    with pytest.raises(ScriptError, match="names x, and the batch has no such entry"):
        pad(batch, {"x": 0}, multiple)


@pytest.mark.parametrize("multiple", [8, None])
def test_an_entry_that_is_no_tensor(multiple: int | None) -> None:
    with pytest.raises(ScriptError, match="names x, and the batch has a list there"):
        pad({"x": [1, 2]}, {"x": 0}, multiple)


def test_without_a_multiple_a_batch_stays_what_it_is() -> None:
    batch = {"x": torch.ones(1, 3)}
    assert pad(batch, {"x": 0}, None) is batch
