"""Keras on NVIDIA's GPUs."""

from __future__ import annotations

from hwal_keras.gpu import GpuKerasRuntime


class CudaKerasRuntime(GpuKerasRuntime):
    """Nothing here is NVIDIA's alone."""
