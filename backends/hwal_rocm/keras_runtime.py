"""Keras on AMD's GPUs."""

from __future__ import annotations

from hwal_keras.gpu import GpuKerasRuntime


class RocmKerasRuntime(GpuKerasRuntime):
    """Nothing here is AMD's alone."""
