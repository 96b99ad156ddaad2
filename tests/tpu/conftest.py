"""XLA compiles a graph three times as fast where it need not make it fast: these are small, and run a few times."""

import os
from importlib.util import find_spec

if find_spec("torch_xla"):  # elsewhere tests of other backends, TensorFlow's among them, may share this process
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
