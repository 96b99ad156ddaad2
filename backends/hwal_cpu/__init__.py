"""The CPU: always there, the last resort of `auto`. One device is one NUMA node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from hwal.backend import Backend
from hwal.host import Host
from hwal.values import Caps, Decision, Plan, Probe, Target

# Median of 7 training steps (forward, backward) of a 384-1536-384 MLP on 2048 rows under autocast, against fp32: torch 2.13,
# one core of an AMD EPYC (Zen 4), ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY holding it to AVX2, or oneDNN to AVX512_CORE.
EMULATED = {
    "bf16": "about 2× slower than fp32 with AVX512, 10× with AVX2",
    "fp16": "about 13× slower than fp32",
}


class CpuBackend(Backend):
    name = "cpu"
    priority = 10
    extra = "torch"
    caps = Caps(frameworks=("torch", "keras"), collectives="gloo", shares_devices=True, sharding=True, emulated=EMULATED)
    runtimes: ClassVar[Mapping[str, str]] = {
        "torch": "hwal_cpu.torch_runtime:CpuTorchRuntime",
        "keras": "hwal_cpu.keras_runtime:CpuKerasRuntime",
    }

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_cpu.probe import probe  # workers import this package too, and never probe

        return probe(host)

    def environment(self, plan: Plan) -> dict[str, str]:
        """OMP_NUM_THREADS, which torch reads once, at import; unequal ranks are left to the runtime's set_num_threads.

        ACCELERATE_USE_CPU, because accelerate on a CPU otherwise ignores a world of several ranks, and each trains alone.
        """
        if plan.framework.value == "keras":
            from hwal.plan.keras import VARIABLES

            return dict(VARIABLES)
        threads = {process.threads for process in plan.processes}
        count = threads.pop() if len(threads) == 1 else None
        return {"ACCELERATE_USE_CPU": "true"} | ({} if count is None else {"OMP_NUM_THREADS": str(count)})

    def tuning(self, plan: Plan, probe: Probe, host: Host) -> dict[str, Decision]:
        """gloo's interface, where its own choice would not reach the other machines."""
        if plan.framework.value != "torch" or plan.nodes == 1:
            return {}
        from hwal.network import gloo

        return gloo(host)


backend = CpuBackend()
