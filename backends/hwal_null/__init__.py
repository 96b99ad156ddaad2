"""The null backend: imaginary devices, for tests, and the template for a backend of your own.

Copy this package, rename it, and replace what the three files say:

- `__init__.py` (this one) declares the backend: its name, its priority, what it can do, and where its runtimes are. hwal
  imports it on every command, so it imports no framework, and nothing heavy.
- `probe.py` looks for the hardware: a Host in, a Probe out. It asks the Host only, so that a recorded machine can stand
  in for a real one. It imports no framework either.
- `torch_runtime.py` is the hardware under a torch script, a subclass of hwal_torch's runtime; `keras_runtime.py` under a
  Keras script. Only workers import them.

One entry point makes it known (`[project.entry-points."hwal.backends"]`, `NAME = "PACKAGE:backend"`), and one test file
that inherits `hwal.testing.probes.ProbeSuite` and `hwal_torch.testing`'s suite holds it to what hwal expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.backend import Backend
from hwal.errors import DeviceError, TargetError
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Plan, Probe, Target


class NullBackend(Backend):
    name = "null"  # what --device calls it, and the entry point's name
    priority = None  # never taken by auto; real hardware says how much it is to be preferred (cpu: 10)
    extra = "torch"  # pip install 'hwal[torch]' brings what it needs
    caps = Caps(frameworks=("torch",), collectives="gloo", sharding=True, imaginary=True)
    runtimes: ClassVar[Mapping[str, str]] = {"torch": "hwal_null.torch_runtime:NullTorchRuntime"}

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_null.probe import probe

        return probe(host, asked)

    def select(self, asked: Target, probe: Probe) -> tuple[Device, ...]:
        """All devices: what stands after the colon of `null:8` is how many there are to be.

        Override this only if a target of yours means something else than indices and ids (`cuda:0,2`).
        Raises TargetError, and DeviceError when the devices were counted otherwise, as on a machine read from a file.
        """
        from hwal_null.probe import MOST, count

        if asked.spec is None:
            return probe.devices
        wanted = count(asked.spec)
        if wanted is None:
            raise TargetError(
                f"{asked.spec!r} is not a number of imaginary devices (1 to {MOST})",
                where=f"--device {asked}",
                hint="--device null:8",
            )
        if wanted != len(probe.devices):
            raise DeviceError(
                f"{wanted} imaginary devices asked for, {len(probe.devices)} are there",
                where=f"--device {asked}",
                hint=f"--device null:{len(probe.devices)}, or another machine file",
            )
        return probe.devices

    def environment(self, plan: Plan) -> dict[str, str]:
        """Variables that every rank has before torch is imported: here one that keeps accelerate off real devices."""
        return {"ACCELERATE_USE_CPU": "true"}


backend = NullBackend()
