"""A backend whose runtime needs no framework: for tests of what is around a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.backend import Backend
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Probe, Target


class StandIn(Backend):
    name = "null"
    priority = None
    extra = "torch"
    caps = Caps(frameworks=("torch",), collectives="gloo")
    runtimes: ClassVar[Mapping[str, str]] = {"torch": "hwal_standin.runtime:StandInRuntime"}

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        return Probe("null", "ready", "always", devices=(Device("null", 0, "stand-in"),))


backend = StandIn()
