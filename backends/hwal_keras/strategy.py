"""Which of TensorFlow's strategies a run trains by, and the devices that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hwal.errors import ScriptError, VersionError

EARLY = "call hwal.start() before anything of TensorFlow's computes: datasets and models are made within it"


def use_threads(intra: int | None) -> str | None:
    """Sets the threads that one operation may use; returns what to say where TensorFlow has begun with others."""
    if intra is None or tf.config.threading.get_intra_op_parallelism_threads() == intra:
        return None
    try:
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(intra)
    except RuntimeError:
        return f"TensorFlow had begun before hwal.start(), with threads of its own choice and not {intra}; {EARLY}"
    return None


def logical_cpus(count: int) -> list[str]:
    """As many logical devices of the host's CPU, by name. Raises ScriptError where TensorFlow has begun with fewer."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if count > 1:
        before = tf.config.get_logical_device_configuration(cpu)
        if before is None or len(before) < count:
            try:
                tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
            except RuntimeError:
                raise ScriptError(
                    f"{count} logical devices are wanted, and TensorFlow has begun with {len(before or [1])}", hint=EARLY
                ) from None
    return [device.name for device in tf.config.list_logical_devices("CPU")[:count]]


def grow_gpus() -> None:
    """GPU memory is taken as it is needed: another framework of the same process, or another process, finds room too.

    Raises VersionError where TensorFlow has taken it all already.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError:
            raise VersionError("TensorFlow has taken the memory of the GPUs already", hint=EARLY) from None


def mirrored(devices: Sequence[str]) -> Any:
    """One replica a device of this process; of one device the default strategy."""
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    # Logical devices share one pool of threads, in which collectives that wait for each other stand still for seconds.
    on_cpu = all("CPU" in name for name in devices)
    ways = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=ways)
