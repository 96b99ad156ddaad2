"""The sockets of the watch."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from hwal.watch.link import Hub, Line, Spoke

HOST = "127.0.0.1"


def heard(wait: Callable[[float], Any], count: int) -> list[Any]:
    """The next `count` messages."""
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += wait(1.0)
    return found


def test_messages_go_both_ways_and_the_end_is_seen() -> None:
    hub = Hub(HOST)
    spoke = Spoke(HOST, hub.port, hub.key, 3)
    spoke.line.send({"beat": 1})
    spoke.line.send({"beat": 2})
    assert heard(hub.wait, 3)[1:] == [(3, {"beat": 1}), (3, {"beat": 2})]
    hub.tell({"doom": "all"})
    assert heard(spoke.wait, 1) == [{"doom": "all"}]
    spoke.close()
    assert heard(hub.wait, 1) == [(3, {})]
    hub.close()


def test_rank_0_is_missed_too() -> None:
    hub = Hub(HOST)
    spoke = Spoke(HOST, hub.port, hub.key, 1)
    heard(hub.wait, 1)
    hub.close()
    assert heard(spoke.wait, 1) == [{}]
    spoke.close()


def test_a_message_that_the_system_takes_in_part_is_ended_before_the_next_begins() -> None:
    ours, theirs = socket.socketpair()
    line, other = Line(ours), Line(theirs)
    line.send({"long": "x" * 4_000_000})  # more than the system holds
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while {"next": 1} not in found:
        assert time.monotonic() < deadline
        found += other.received()
        other._pending, kept = b"", other._pending  # a message of that length is none; what comes after it is
        assert len(kept) < 4_000_000
        line.send({"next": 1})
    assert all(message == {"next": 1} for message in found)
    line.close()
    other.close()


def test_strangers_are_not_heard() -> None:
    hub = Hub(HOST)
    stranger = Spoke(HOST, hub.port, "guessed", 1)
    stranger.line.send({"doom": "all"})
    with socket.create_connection((HOST, hub.port)) as other:
        other.sendall(b"GET / HTTP/1.1\r\n\r\n[1]\n")
        spoke = Spoke(HOST, hub.port, hub.key, 2)
        spoke.line.send({"beat": 1})
        assert [rank for rank, _ in heard(hub.wait, 2)] == [2, 2]
    assert list(hub.lines) == [2]
    for end in (spoke, stranger, hub):
        end.close()


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_forked_worker_does_not_hold_the_line() -> None:
    hub = Hub(HOST)
    spoke = Spoke(HOST, hub.port, hub.key, 1)
    heard(hub.wait, 1)
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(writer)
        os.read(reader, 1)  # it lives until the test is done
        os._exit(0)
    spoke.close()
    assert heard(hub.wait, 1) == [(1, {})]
    os.close(writer)
    os.waitpid(worker, 0)
    os.close(reader)
    hub.close()
