"""Keras on GPUs, NVIDIA's and AMD's: one process drives all that the plan has, by MirroredStrategy where they are several."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hwal.runtime import Job, Memory
from hwal_keras import workers
from hwal_keras.runtime import SharedKerasRuntime
from hwal_keras.strategy import has_nccl, mirrored, take_gpus, way_to_add


class GpuKerasRuntime(SharedKerasRuntime):
    """The common part of both vendors' runtimes.

    Attributes:
        gpus: logical devices of this process, by name. tensorflow: the module, or what stands for it in a test.
    """

    on_host = False
    tensorflow: Any = tf

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.jit = job.world.size == 1 and len(job.devices) == 1
        self.gpus: list[str] = []

    def open_strategy(self) -> Any:
        """Every process sees the plan's devices, in the plan's order, and takes those that stand where its own do."""
        planned = [device.index for device in self.job.plan.devices]
        places = [planned.index(index) for index in self.job.process.devices]
        self.gpus, note = take_gpus(places, len(planned), self.tensorflow)
        if note is not None:
            self.say(f"note: {note}")
        nccl = has_nccl()
        if self.world_size > 1:
            return workers.strategy(nccl)
        way = way_to_add(self.gpus, nccl)
        if len(self.gpus) > 1:
            self.say(f"gradients are added up by {way}")
        return mirrored(self.gpus, way)

    def memory(self) -> Memory:
        """Bytes that TensorFlow's allocator has given out and gave out at most, on the fullest GPU."""
        info = [self.tensorflow.config.experimental.get_memory_info(name.removeprefix("/device:")) for name in self.gpus]
        used, peak = (max(one[name] for one in info) for name in ("current", "peak"))
        return Memory(used, peak, self.job.hardware.memory_bytes, "TensorFlow's allocator")
