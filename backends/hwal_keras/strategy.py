"""Which of TensorFlow's strategies a run trains by, and the devices that it is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op  # not public; tried with TensorFlow 2.21

from hwal.errors import DeviceError, ScriptError
from hwal.plan.keras import GROWTH
from hwal.values import Decision

NCCL, COPIES, ONE = "NCCL", "hierarchical copy", "one device"
HALVES = 8  # GPUs of a machine in which two groups of four are wired up closely: what TensorFlow's hierarchical copy is for
GPU_BUILDS = "pip install 'tensorflow[and-cuda]' for NVIDIA's GPUs, tensorflow-rocm for AMD's; or --device cpu"
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


def take_gpus(
    places: Sequence[int], count: int, tensorflow: Any = tf, environ: Mapping[str, str] = os.environ
) -> tuple[list[str], str | None]:
    """The logical GPUs at these places among the `count` of the plan, in its order, by name; and what to say where TensorFlow
    has taken all of their memory already.

    It takes memory as it is needed then: another framework of the process, or another process, finds room too. To be called
    before anything is computed. `tensorflow`: the module, or what stands for it in a test. Raises DeviceError where it sees
    fewer, ScriptError where it has begun with others.
    """
    config = tensorflow.config
    here = config.list_physical_devices("GPU")
    if len(here) < count:
        build = tensorflow.sysconfig.get_build_info()
        built = " and ".join(name for name in ("cuda", "rocm") if build.get(f"is_{name}_build"))
        raise DeviceError(
            f"TensorFlow sees {len(here)} GPU{'s' * (len(here) != 1)}, the plan has {count}",
            where="rt.start",
            why=f"TensorFlow {tensorflow.__version__} was built for {built or 'CPUs only'}",
            hint="hwal devices; hwal doctor" if built else GPU_BUILDS,
        )
    mine = [here[place] for place in places]
    try:
        if len(mine) < len(here):
            config.set_visible_devices(mine, "GPU")
    except RuntimeError:
        raise ScriptError(
            f"TensorFlow has begun with {len(here)} GPUs, and {len(mine)} of them are this rank's", hint=EARLY
        ) from None
    note = None
    try:
        for gpu in mine:
            config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        if environ.get(GROWTH) != "true":
            note = f"TensorFlow had begun before hwal.start(), and has taken all memory of the GPUs; {EARLY}"
    return [device.name for device in config.list_logical_devices("GPU")], note


def has_nccl() -> bool:
    """Whether this build of TensorFlow can add up gradients by NCCL (RCCL under ROCm): on Linux those for GPUs do."""
    return bool(get_registered_kernels_for_op("NcclAllReduce").kernel)


def way_to_add(devices: Sequence[str], nccl: bool) -> Decision:
    """How the gradients of one process's devices come together: NCCL, hierarchical copy or one device."""
    if not all("GPU" in name for name in devices):
        # Logical devices share one pool of threads, in which collectives that wait for each other stand still for seconds.
        return Decision(ONE, "logical devices of a CPU share its memory")
    if nccl:
        return Decision(NCCL, "between GPUs")
    if len(devices) == HALVES:
        return Decision(COPIES, "no NCCL in this build of TensorFlow; in two halves of four, as such machines are wired")
    return Decision(ONE, "no NCCL in this build of TensorFlow")


def mirrored(devices: Sequence[str], way: Decision | None = None) -> Any:
    """One replica a device of this process; of one device the default strategy. `way`: of way_to_add."""
    if len(devices) == 1:
        return tf.distribute.get_strategy()
    way = way or way_to_add(devices, nccl=False)
    made = {ONE: tf.distribute.ReductionToOneDevice, COPIES: tf.distribute.HierarchicalCopyAllReduce}
    ways = made[way.value]() if way.value in made else None  # MirroredStrategy's own are collectives by NCCL
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=ways)
