"""The TPU: Google's chips, by PyTorch/XLA; and, under `--device tpu:cpu`, XLA on the CPU, with nothing but the chip missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.backend import Backend
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Plan, Probe, Target, World

# Median of 7 training steps of a 384-1536-384 MLP on 2048 rows under autocast, against fp32: torch_xla 2.8.1 on its CPU
# platform, one core of an AMD EPYC (Zen 4), three times: 1.5, 1.7, 2.0. The chips have bf16 themselves.
EMULATED = {"bf16": "about 1.7× slower than fp32 on XLA's CPU platform; a TPU has it"}


class TpuBackend(Backend):
    name = "tpu"
    priority = 90
    extra = "tpu"
    caps = Caps(
        frameworks=("torch", "keras"),
        collectives="gloo",  # between hosts; between chips XLA puts the collectives into the graph
        sharding=True,
        spmd=True,
        deterministic=False,
        emulated=EMULATED,
    )
    runtimes: ClassVar[Mapping[str, str]] = {
        "torch": "hwal_tpu.torch_runtime:SpmdTorchRuntime",
        "keras": "hwal_tpu.keras_runtime:TpuKerasRuntime",
    }

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

    def runtime(self, plan: Plan) -> str | None:
        """One process for all chips of a host, or one for each."""
        if plan.framework.value == "torch" and plan.local_size > 1:
            return "hwal_tpu.multi_process:MultiProcessTorchRuntime"
        return super().runtime(plan)

    def environment(self, plan: Plan) -> dict[str, str]:
        from hwal_tpu.launch import environment

        return environment(plan)

    def resources(self, plan: Plan) -> dict[str, str]:
        from hwal_tpu.launch import resources

        return resources(plan)

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
