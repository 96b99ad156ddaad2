"""The TPU: Google's chips, by PyTorch/XLA; and, under `--device tpu:cpu`, XLA on the CPU, with nothing but the chip missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.host import Host
from hwal.runtime import Backend
from hwal.topology import Device
from hwal.values import Caps, Plan, Probe, Target, World


class TpuBackend(Backend):
    name = "tpu"
    priority = 90
    extra = "tpu"
    caps = Caps(
        frameworks=("torch",),
        collectives="gloo",  # between hosts; between chips XLA puts the collectives into the graph
        sharding=True,
        spmd=True,
        emulated={"bf16": "XLA's CPU platform converts to fp32 and back around every operation; a TPU does not"},
    )
    runtimes: ClassVar[Mapping[str, str]] = {"torch": "hwal_tpu.torch_runtime:TpuTorchRuntime"}

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_tpu.present import ABSENT, is_hinted  # workers import this package too, and never probe

        if asked is None and not is_hinted(host):
            return Probe(self.name, "absent", ABSENT)
        from hwal_tpu.probe import probe

        return probe(host, asked)

    def select(self, asked: Target, probe: Probe) -> tuple[Device, ...]:
        """`tpu:cpu`, `tpu:cpu:4`: the virtual devices; `tpu:v5e-8`: all, if this is one; else indices or ids, as everywhere.

        Raises TargetError, DeviceError: chips that no process can have together.
        """
        from hwal_tpu.select import check_block, select

        chosen = select(asked, probe)
        if chosen is None:
            chosen = super().select(asked, probe)
            check_block(chosen, probe, f"--device {asked}")
        return chosen

    def environment(self, plan: Plan) -> dict[str, str]:
        from hwal_tpu.launch import environment

        return environment(plan)

    def rank_environment(self, plan: Plan, world: World, host: Host) -> dict[str, str]:
        from hwal_tpu.launch import rank_environment

        return rank_environment(plan, world, host)

    def check(self, plan: Plan) -> None:
        from hwal_tpu.launch import check

        check(plan)

    def world(self, plan: Plan, host: Host) -> World | None:
        """This host's place in its slice: each of the slice's hosts runs the same command."""
        from hwal_tpu.launch import world

        return world(plan, host)


backend = TpuBackend()
