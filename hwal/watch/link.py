"""The sockets of the watch: every rank has one to rank 0. When it closes without a word, the process at its other end is gone;
no process holds it but the rank, so that nothing else keeps it open. What goes through it is JSON, a line a message."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hwal.values import LOOPBACK

CONNECT = 5.0  # seconds
LAST_WORD = 0.5  # seconds
LONGEST = 1 << 16  # bytes of a message
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a machine that is lost closes nothing


class Line:
    """One end of a connection. `rank`: who is at the other, once it has said so; `closed`: whether it is."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.rank: int | None = None
        self.closed = False
        self._pending = b""
        self._unsent = b""  # the rest of a message that the system took in part
        self._sending = threading.Lock()
        self.socket.setblocking(False)
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name, value in KEEP_ALIVE.items():
                if hasattr(socket, name):
                    self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        close_in_children(self.socket)

    def send(self, message: Mapping[str, Any]) -> None:
        """A message that the other end does not take, since it is stopped or gone, is dropped: a newer one follows. Of one that
        it has taken in part the rest goes before the next."""
        with self._sending, suppress(OSError):
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            if not self._unsent:
                data = json.dumps(message).encode() + b"\n"
                self._unsent = data[self.socket.send(data) :]

    def send_last(self, message: Mapping[str, Any]) -> None:
        """What must not be dropped, since nothing follows: waits a moment for the other end to take it."""
        with self._sending, suppress(OSError):
            self.socket.settimeout(LAST_WORD)
            self.socket.sendall(self._unsent + json.dumps(message).encode() + b"\n")

    def received(self) -> Iterator[dict[str, Any]]:
        """The messages that have come; marks the line closed at its end."""
        while True:
            try:
                data = self.socket.recv(LONGEST)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._pending += data
        *lines, rest = self._pending.split(b"\n")
        self._pending = rest[:LONGEST]
        for line in lines:
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self.socket.close()


class Hub:
    """Rank 0's side. `key` keeps strangers out; `port` is the system's choice."""

    def __init__(self, address: str) -> None:
        self.key = secrets.token_hex(16)
        self._listener = _listen(address)
        self._listener.setblocking(False)
        close_in_children(self._listener)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.lines: dict[int, Line] = {}  # by rank, once it has said its name

    def wait(self, seconds: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """(rank, message) of what comes first, if any does within `seconds`; {} when a rank's line closed."""
        for key, _ in self._selector.select(seconds):
            line: Line | None = key.data
            if line is None:
                self._accept()
                continue
            for message in line.received():
                if line.rank is None and not self._named(line, message):
                    break
                if line.rank is not None:
                    yield line.rank, message
            if line.closed:
                self._selector.unregister(line.socket)
                line.close()
                if line.rank is not None:
                    yield line.rank, {}

    def tell(self, message: Mapping[str, Any], last: bool = False) -> None:
        for line in list(self.lines.values()):  # the watch's thread may hear of another meanwhile
            if not line.closed:
                (line.send_last if last else line.send)(message)

    def close(self) -> None:
        for line in self.lines.values():
            line.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(OSError):
            line = Line(self._listener.accept()[0])
            self._selector.register(line.socket, selectors.EVENT_READ, line)

    def _named(self, line: Line, message: dict[str, Any]) -> bool:
        rank = message.get("rank")
        if not isinstance(rank, int) or not hmac.compare_digest(str(message.get("key")).encode(), self.key.encode()):
            line.closed = True
            return False
        line.rank = rank
        self.lines[rank] = line
        return True


class Spoke:
    """The side of every other rank. Raises OSError where rank 0 cannot be reached."""

    def __init__(self, address: str, port: int, key: str, rank: int) -> None:
        self.line = Line(socket.create_connection((address, port), CONNECT))
        self.line.send({"key": key, "rank": rank})
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.line.socket, selectors.EVENT_READ)

    def wait(self, seconds: float) -> Iterator[dict[str, Any]]:
        """As Hub.wait, of rank 0 alone."""
        if self._selector.select(seconds):
            yield from self.line.received()
            if self.line.closed:
                yield {}

    def close(self) -> None:
        self.line.close()
        self._selector.close()


def _listen(address: str) -> socket.socket:
    """On the loopback address only where all ranks are there."""
    if address in LOOPBACK:
        return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def close_in_children(held: socket.socket) -> None:
    """A loader's worker that was forked would keep the line of a killed rank open."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=held.close)
