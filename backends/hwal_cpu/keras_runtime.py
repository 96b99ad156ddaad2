"""Keras on CPUs: one process by TensorFlow's default strategy; several by MultiWorkerMirroredStrategy; and, under
--virtual-ranks N, N logical devices of one process, which stand for as many replicas of an accelerator."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hwal.resident import peak_resident_bytes, resident_bytes
from hwal.runtime import Job, Memory
from hwal_keras import workers
from hwal_keras.quiet import ERRORS, LEVEL, NO_GPU, errors_only
from hwal_keras.runtime import SharedKerasRuntime
from hwal_keras.strategy import logical_cpus, mirrored


class CpuKerasRuntime(SharedKerasRuntime):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.jit = job.world.size == 1 and self.replicas == 1  # over several its variables are on another device than it says

    @property
    def replicas(self) -> int:
        """Logical devices of this process."""
        return (self.job.settings.virtual_ranks or self.world_size) // self.world_size

    def open_strategy(self) -> Any:
        if self.world_size > 1:
            return workers.strategy()
        return mirrored(logical_cpus(self.replicas))

    def opening(self) -> AbstractContextManager[None]:
        return errors_only(NO_GPU) if os.environ.get(LEVEL) in ERRORS else nullcontext()

    def memory(self) -> Memory:
        return Memory(resident_bytes(), peak_resident_bytes(), self.job.hardware.memory_bytes, "procfs")
