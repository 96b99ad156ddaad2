"""The toy accelerator: a device that a file announces. hwal imports this on every command, so it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.backend import Backend
from hwal.host import Host
from hwal.values import Caps, Probe, Target


class ToyBackend(Backend):
    name = "toy"
    priority = None  # nobody wants it by accident
    extra = "torch"
    caps = Caps(frameworks=("torch",), collectives="gloo", imaginary=True)
    runtimes: ClassVar[Mapping[str, str]] = {"torch": "hwal_toy.torch_runtime:ToyTorchRuntime"}

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_toy.probe import probe

        return probe(host)


backend = ToyBackend()
