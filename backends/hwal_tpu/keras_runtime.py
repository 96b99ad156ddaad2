"""Keras on TPUs: TPUStrategy over this machine's chips, or those of a TPU Node; under `--device tpu:cpu:8` logical devices
of the CPU stand for the cores, with all that is not the chip."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hwal.resident import peak_resident_bytes, resident_bytes
from hwal.runtime import Memory
from hwal_keras.runtime import SharedKerasRuntime
from hwal_keras.strategy import logical_cpus, mirrored
from hwal_tpu.chips import is_node
from hwal_tpu.connect import connect
from hwal_tpu.node import check_data
from hwal_tpu.virtual import is_virtual

STEPS = 32  # for one call from the host: a call takes about as long as several short steps of a chip


class TpuKerasRuntime(SharedKerasRuntime):
    """Attributes:
    address: of a TPU Node, or its name; None where the chips are this machine's.
    """

    static_shapes = True
    pad_to_multiple_of = 64
    why_no_jit = "fails on a TPU: TPUStrategy has XLA compile the step already"
    tensorflow: Any = tf

    def open_strategy(self) -> Any:
        hardware = self.job.hardware
        self.address = hardware.id if is_node(hardware) else None
        if is_virtual(hardware):
            return mirrored(logical_cpus(len(self.job.devices)))
        self.on_host = False
        self.steps_per_execution = STEPS
        strategy = connect(self.tensorflow, self.address)
        opened, planned = strategy.num_replicas_in_sync, len(self.job.devices)
        if self.address is None and opened != planned:
            self.say(f"note: TensorFlow has opened {opened} TPU devices, where the plan has {planned}: it trains on those")
        return strategy

    def feed(self, data: Any, train: bool = True) -> Any:
        if self.address is not None and isinstance(data, tf.data.Dataset):
            check_data(data, self.address)  # before anything reads a row of it
        return super().feed(data, train)

    def memory(self) -> Memory:
        if is_virtual(self.job.hardware):
            return Memory(resident_bytes(), peak_resident_bytes(), self.job.hardware.memory_bytes, "procfs")
        return Memory(None, None, self.job.hardware.memory_bytes, "TensorFlow does not tell")
