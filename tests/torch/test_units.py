"""How global batches are cut: every row once, all ranks in step."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hwal_torch.units import Cut, Unit, grouped

WORLDS = st.integers(1, 6)
MICRO = st.none() | st.integers(1, 9)


def ranks(total: int, train: bool, world: int, micro: int | None, parts: int | None, equal: bool) -> list[list[Unit]]:
    return [Cut(rank, world, micro, parts, equal).units(total, train) for rank in range(world)]


def rows(units: Sequence[Unit]) -> list[int]:
    return [row for unit in units for row in range(unit.low, unit.high) if unit.weight]


@given(st.integers(0, 60), st.booleans(), WORLDS, MICRO, st.none() | st.integers(1, 4), st.booleans())
def test_ranks_together_have_every_row_once(
    total: int, train: bool, world: int, micro: int | None, per: int | None, equal: bool
) -> None:
    if equal and not train:
        total += world if total else 0
    shares = ranks(total, train, world, None if per else micro, per * world if per else None, equal)
    assert [row for share in shares for row in rows(share)] == list(range(total))
    for share in shares:
        assert [unit.first for unit in share] == [i == 0 for i in range(len(share))]
        assert [unit.last for unit in share] == [i == len(share) - 1 for i in range(len(share))]
        assert all(unit.rows > 0 and unit.total == total for unit in share)
        if not train:
            assert all(unit.weight for unit in share)


@given(st.integers(1, 60), st.booleans(), WORLDS, MICRO, st.booleans())
def test_in_training_every_rank_has_a_forward(total: int, equal: bool, world: int, micro: int | None, virtual: bool) -> None:
    shares = ranks(total, True, world, None if virtual else micro, 2 * world if virtual else None, equal)
    assert min(map(len, shares)) > 0
    if equal:
        assert len(set(map(len, shares))) == 1


@given(st.integers(0, 60), st.integers(1, 12), st.integers(1, 12))
def test_virtual_ranks_are_the_same_parts_at_every_world(total: int, parts: int, world: int) -> None:
    parts *= world
    here = [unit for share in ranks(total, True, world, None, parts, False) for unit in share if unit.weight]
    alone = Cut(0, 1, None, parts).units(total)
    assert [(unit.low, unit.high, unit.part) for unit in here] == [(unit.low, unit.high, unit.part) for unit in alone]


def fewest(counts: Sequence[int], micro: int | None) -> int:
    """The smallest number of forwards, none of them empty on any rank, in which ranks get through their rows."""
    largest = micro or max(counts)
    return next((n for n in range(1, min(counts) + 1) if all(count <= n * largest for count in counts)), min(counts))


@given(st.integers(0, 60), WORLDS, MICRO)
def test_an_evaluation_in_step_is_no_longer_than_it_must_be(more: int, world: int, micro: int | None) -> None:
    total = world + more
    shares = ranks(total, False, world, micro, None, True)
    counts = [len(rows(share)) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert {len(share) for share in shares} == {fewest(counts, micro)}
    assert all(unit.rows <= max(micro or total, 2) for share in shares for unit in share)


def test_an_evaluation_in_step() -> None:
    spans = [[(unit.low, unit.high) for unit in share] for share in ranks(11, False, 3, 2, None, True)]
    assert spans == [[(0, 1), (1, 3)], [(3, 5), (5, 7)], [(7, 9), (9, 11)]]
    assert [len(share) for share in ranks(11, True, 3, 2, None, True)] == [2, 2, 2]


def joined(sizes: Sequence[int], least: int) -> list[list[int]]:
    """Oracle of `grouped`: joins to the right whatever is small, then the last to the left."""
    groups = [[size] for size in sizes]
    i = 0
    while i + 1 < len(groups):
        if sum(groups[i]) < least:
            groups[i : i + 2] = [groups[i] + groups[i + 1]]
        else:
            i += 1
    if len(groups) > 1 and sum(groups[-1]) < least:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 8))
def test_grouped(sizes: list[int], least: int) -> None:
    groups = list(grouped(sizes, lambda size: size, least))
    assert [size for group in groups for size in group] == sizes
    assert groups == joined(sizes, least)
    assert sum(sizes) < least or all(sum(group) >= least for group in groups)


def test_grouped_reads_no_further_than_it_must() -> None:
    batches = iter([4, 4, 4, 1])
    assert next(grouped(batches, lambda size: size, 3)) == [4]
    assert list(batches) == [4, 1]
