from __future__ import annotations

from pathlib import Path

import pytest

from hwal.launch.outcome import (
    Exit,
    Failure,
    Outcome,
    clear,
    describe,
    first_failure,
    is_lost_peer,
    leave_ended,
    read_ended,
    read_failure,
    read_outcomes,
)


def left(rank: int, ended: float | None = 5.0, error: str | None = None, lost: bool = False, code: int = 1) -> Outcome:
    return Outcome(rank, 100 + rank, f"null:{rank}", 1.0, ended, code, error, (error,) if error else (), lost)


def first(exits: list[Exit], outcomes: list[Outcome]) -> int | None:
    verdict = first_failure(exits, {outcome.rank: outcome for outcome in outcomes})
    return None if verdict is None else verdict.rank


def test_a_start_is_forgotten_before_the_next(tmp_path: Path) -> None:
    left(0).write(tmp_path)
    Failure((Exit(0, 1, 1, 5),)).write(tmp_path)
    (tmp_path / "launcher.pid").write_text("1")
    assert read_outcomes(tmp_path) and read_failure(tmp_path)
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.pid"]


def test_a_kill_by_the_kernel_is_told_with_its_limit() -> None:
    verdict = first_failure([Exit(1, 2, -9, 5)], {1: Outcome(1, 2, "null:1", 1.0)})
    assert verdict is not None
    assert describe(verdict, 2, None, "was killed by the kernel for memory: its cgroup's limit is 4.0 GiB (memory.max)") == [
        "hwal: rank 1 of 2 on null:1 was killed by the kernel for memory: its cgroup's limit is 4.0 GiB (memory.max)"
    ]
    assert "someone did" in describe(verdict, 2, None)[0]


def test_nothing_failed() -> None:
    assert first([], [left(0, code=0)]) is None


def test_the_killed_rank_comes_before_those_that_miss_it() -> None:
    exits = [Exit(0, 1, 1, 5), Exit(1, 2, -9, 5)]
    assert first(exits, [left(0, 4.0, "Connection reset by peer", True), Outcome(1, 2, "null:1", 1.0)]) == 1


def test_the_agents_own_signals_are_nobodys_failure() -> None:
    exits = [Exit(0, 1, -15, 5), Exit(1, 2, -9, 9), Exit(2, 3, 1, 5)]
    assert first(exits, [Outcome(0, 1, "d", 1.0), Outcome(1, 2, "d", 1.0), left(2, 5.0, "ValueError")]) == 2


def test_a_lost_peer_is_not_the_cause_even_when_it_is_earlier() -> None:
    exits = [Exit(0, 1, 1, 5), Exit(1, 2, 1, 5)]
    assert first(exits, [left(0, 4.0, "Connection closed by peer", True), left(1, 4.5, "ValueError")]) == 1


def test_a_rank_that_the_agent_swept_away_may_have_left_the_cause() -> None:
    assert first([Exit(0, 1, 1, 5), Exit(1, 2, -15, 5)], [left(0, 4.0, "reset", True), left(1, 4.5, "ValueError")]) == 1
    assert first([Exit(0, 1, 1, 5)], [left(0, 4.0, "reset", True), left(1, 4.5, "ValueError")]) == 1


def test_a_rank_that_hwal_ended_says_nothing(tmp_path: Path) -> None:
    """Both in one second: the one that failed did not get to its end, and the other waited for it."""
    exits = [Exit(0, 1, -9, 5), Exit(1, 2, -9, 5)]
    outcomes = {0: Outcome(0, 1, "d", 1.0), 1: left(1, 2.0, "ValueError")}
    for pid in (1, 2):
        leave_ended(tmp_path, pid)
    verdict = first_failure(exits, outcomes, read_ended(tmp_path))
    assert verdict is not None and verdict.rank == 1
    assert read_ended(tmp_path / "none") == frozenset()


def test_a_rank_that_left_its_error_and_was_ended_later_failed_by_that_error(tmp_path: Path) -> None:
    verdict = first_failure(
        [Exit(0, 1, -9, 5), Exit(1, 2, -9, 5)], {0: left(0, 4.0, "ValueError"), 1: left(1, 4.1, "reset", True)}
    )
    assert verdict is not None and verdict.rank == 0
    assert describe(verdict, 2, tmp_path)[0] == "hwal: rank 0 of 2 on null:0 failed first: ValueError"


def test_else_the_earliest() -> None:
    exits = [Exit(0, 1, 1, 5), Exit(1, 2, 1, 5)]
    assert first(exits, [left(0, 4.5, "A"), left(1, 4.2, "B")]) == 1
    assert first(exits, []) == 0


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:5862: Connection reset by peer.",
        "Connection closed by peer [127.0.0.1]:1",
        "Broken pipe",
    ],
)
def test_lost_peers_are_known_by_their_words(text: str) -> None:
    assert is_lost_peer(text)
    assert not is_lost_peer("planted")


def test_what_is_printed(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text("\n".join(f"line {number}" for number in range(40)))
    verdict = first_failure([Exit(1, 2, -9, 5)], {1: Outcome(1, 2, "null:1", 1.0, log=str(log))})
    assert verdict is not None and verdict.code == 1
    lines = describe(verdict, 2, tmp_path)
    assert lines[0].startswith("hwal: rank 1 of 2 on null:1 was killed by SIGKILL: the kernel's out-of-memory killer")
    assert lines[1:-1] == [f"  line {number}" for number in range(25, 40)] and lines[-1] == f"  all of it: {log}"
    verdict = first_failure([Exit(1, 2, 2, 5)], {1: left(1, error="wrong flag", code=2)})
    assert verdict is not None and verdict.code == 2
    assert describe(verdict, 2, tmp_path)[:2] == ["hwal: rank 1 of 2 on null:1 failed first: wrong flag", "  wrong flag"]


def test_outcomes_pass_through_files(tmp_path: Path) -> None:
    outcome = left(3, error="x")
    outcome.write(tmp_path)
    (tmp_path / "rank-4.json").write_text("{")
    assert read_outcomes(tmp_path) == {3: outcome}
