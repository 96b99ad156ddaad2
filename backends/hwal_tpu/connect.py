"""TensorFlow's way to a TPU: find it, connect to it, initialise it, once; then a strategy over its cores."""

from __future__ import annotations

from typing import Any

from hwal.errors import DeviceError

LOCAL = "local"  # what TPUClusterResolver calls the chips of this machine


def connect(tensorflow: Any, address: str | None) -> Any:
    """A TPUStrategy over the TPU at `address`, or over this machine's where there is none.

    `tensorflow`: the module, or what stands for it in a test. Raises DeviceError where no TPU answers.
    """
    name = address or LOCAL
    try:
        resolver = tensorflow.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tensorflow.config.experimental_connect_to_cluster(resolver)
        tensorflow.tpu.experimental.initialize_tpu_system(resolver)
        return tensorflow.distribute.TPUStrategy(resolver)
    # RuntimeError: what asks the Cloud is missing. OSError: the Cloud cannot be reached from here.
    except (ValueError, RuntimeError, OSError, tensorflow.errors.OpError) as error:
        text = str(error).strip()
        raise DeviceError(
            f"no TPU answers at {name}: {text.splitlines()[0] if text else type(error).__name__}",
            where=f"TPUClusterResolver(tpu={name!r})",
            why=None if address else "TensorFlow drives the chips of a TPU VM by the package tensorflow-tpu and its libtpu",
            hint="hwal devices; a Node that was preempted must be made anew" if address else "pip install tensorflow-tpu",
        ) from None
