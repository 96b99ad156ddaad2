"""Not a backend: what NVIDIA's and AMD's GPUs share outside of a framework. Nothing here imports one."""
