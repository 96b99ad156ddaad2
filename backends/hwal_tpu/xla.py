"""PyTorch/XLA as the runtime uses it. What is private there is touched in this file, and of its FSDP v1 in fsdp_v1.py; tested
with torch_xla 2.8.1.

Private: `_XLAC._xla_tensors_from_aten` (sends tensors cut for the devices, as torch_xla's own device loader does),
`_XLAC._xla_get_cpu_tensors` (fetches many at once), `_XLAC._get_xla_sharding_spec` (how a tensor is cut).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime as xr

FSDP = "fsdp"  # the mesh's axis: rows of batches and of sharded parameters are cut along it


def open_device() -> torch.device:
    """Starts XLA's runtime with one program for all devices of this process, and returns torch's handle of them.

    Before anything else uses torch's autograd: a backward on the CPU that came first would make XLA's first one fail.
    """
    xr.use_spmd()
    device: torch.device = torch_xla.device()
    torch.zeros(1).to(device)
    sync()
    return device


def keep_graphs(folder: Path) -> None:
    """Reads compiled graphs from a folder, and writes new ones there. Before anything is computed."""
    xr.initialize_cache(str(folder), readonly=False)


def kept() -> tuple[int, int]:
    """Graphs that were read from that folder, and files there that could not be used."""
    return (
        int(metrics.counter_value("PersistentCacheHit") or 0),
        int(metrics.counter_value("PersistentCacheDeserializeFailure") or 0),
    )


def device_count() -> int:
    """Devices of all processes."""
    return int(xr.global_runtime_device_count())


def process_count() -> int:
    """Processes whose devices PJRT has brought together."""
    return int(xr.process_count())


class Mesh:
    """All devices in one row."""

    def __init__(self) -> None:
        count = device_count()
        self._mesh = spmd.Mesh(numpy.arange(count), (count,), (FSDP,))
        self._device = str(torch_xla.device())
        spmd.set_global_mesh(self._mesh)

    def send(self, tensors: Sequence[torch.Tensor], cut: bool) -> list[torch.Tensor]:
        """Copies of the host's tensors on the devices: their rows cut over them (any number of rows), or whole on each."""
        shardings = [self._rows(tensor.dim()).xla_spec(tensor) if cut and tensor.dim() else None for tensor in tensors]
        sent: list[torch.Tensor] = torch_xla._XLAC._xla_tensors_from_aten(
            list(tensors), [self._device] * len(tensors), shardings
        )
        return sent

    def cut(self, tensor: torch.Tensor) -> None:
        """Has a tensor of the graph in the making computed in rows, each device its own."""
        if tensor.dim() and not is_cut(tensor):
            spmd.mark_sharding(tensor, self._mesh, (FSDP, *[None] * (tensor.dim() - 1)))

    def _rows(self, dim: int) -> spmd.ShardingSpec:
        return spmd.ShardingSpec(self._mesh, (FSDP, *[None] * (dim - 1)))


def is_cut(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in parts on the devices."""
    return tensor.device.type == "xla" and bool(torch_xla._XLAC._get_xla_sharding_spec(tensor))


def share_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor on the first device."""
    if not is_cut(tensor):
        return tensor.numel() * tensor.element_size()
    (first, *_) = spmd.xla_sharding.wrap_as_sharded_tensor(tensor).local_shards
    return int(first.data.numel() * first.data.element_size())


def barrier_backward(module: torch.nn.Module) -> None:
    """Keeps the compiler from fusing a block's backward pass with others', which would gather all gradients at once."""
    spmd.xla_sharding.apply_backward_optimization_barrier(module)


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The host's copies of tensors, all at once. Where several processes run one program, each must call it."""
    there = [tensor.detach() for tensor in tensors if tensor.device.type == "xla"]
    fetched = iter(torch_xla._XLAC._xla_get_cpu_tensors(there))
    return [next(fetched) if tensor.device.type == "xla" else tensor.detach().clone() for tensor in tensors]


def read(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Scalars of the device as numbers, in one go. It waits until the device has them."""
    return [float(value) for value in fetch(tensors)]


def sync() -> None:
    """The graph recorded so far is compiled, if it is new, and started; does not wait for it."""
    torch_xla.sync()


def set_precision(name: str) -> None:
    """A TPU multiplies fp32 matrices in bf16 unless it is told otherwise."""
    from torch_xla.backends import get_mat_mul_precision, set_mat_mul_precision

    wanted = "highest" if name == "fp32" else "default"
    if get_mat_mul_precision() == wanted:
        return
    logger = logging.getLogger(set_mat_mul_precision.__module__)
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of being set twice, the first time too
    try:
        set_mat_mul_precision(wanted)
    finally:
        logger.setLevel(level)


def seed(number: int) -> None:
    """Seeds the devices' generator."""
    xm.set_rng_state(number, device=torch_xla.device())


def memory() -> tuple[int, int] | None:
    """Bytes used and bytes there of the first device; None where the platform does not say."""
    try:
        info = xm.get_memory_info(torch_xla.device())
    except RuntimeError:
        return None
    return int(info["bytes_used"]), int(info["bytes_limit"])


def compiled() -> int:
    """Graphs compiled by this process so far."""
    return int(metrics.counter_value("UncachedCompile") or 0)


def fetched() -> int:
    """How many times the host has read from the device so far; each time it waits until the device is done."""
    data = metrics.metric_data("TransferFromDeviceTime")
    return 0 if data is None else int(data[0])


def on_host() -> dict[str, int]:
    """Operators that XLA lacks, which ran on the host -> how many times; reading a number is not one of them."""
    names = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return {name: int(metrics.counter_value(name)) for name in names if name != "aten::_local_scalar_dense"}


# a process a device


def open_chip() -> torch.device:
    """Starts XLA's runtime in one of several processes that have a device each, and returns torch's handle of it.

    Before anything else uses torch's autograd, as open_device.
    """
    device: torch.device = torch_xla.device()
    xm.set_replication(device, [device])  # from here on graphs are compiled for the devices of all processes
    torch.zeros(1).to(device)
    sync()
    return device


def own_device_count() -> int:
    """Devices of this process."""
    return int(xr.addressable_device_count())


def ordinal() -> int:
    """This process's place in collectives and in what they cut, from 0. PJRT does not promise that it is the rank."""
    return int(xr.global_ordinal())


def send(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the host's tensors on the one device."""
    sent: list[torch.Tensor] = xm.send_cpu_data_to_device(list(tensors), torch_xla.device())
    return sent


def add_up(tensors: Sequence[torch.Tensor]) -> None:
    """Overwrites tensors with their sums over all processes, within the graph in the making; every process calls it."""
    if tensors:
        xm.all_reduce(xm.REDUCE_SUM, list(tensors))


def broadcast(tensors: Sequence[torch.Tensor], root: int) -> None:
    """Overwrites tensors with those of the process whose ordinal is `root`, within the graph; every process calls it.

    torch_xla's own multiplies the others by 0, and a NaN of theirs would stay one.
    """
    (mine,) = send([torch.tensor(ordinal() == root)])  # data, so that all processes compile the same graph
    for tensor in tensors:
        tensor.copy_(torch.where(mine, tensor, torch.zeros_like(tensor)))
    add_up(tensors)


def add_up_gradients(parameters: Sequence[torch.nn.Parameter], users: Sequence[float]) -> None:
    """Overwrites the gradients of parameters with their sums over all processes; every process calls it with the same `users`:
    how many processes have a gradient of each. What none has stays without."""
    used = [parameter for parameter, count in zip(parameters, users, strict=True) if count]
    for parameter in used:
        if parameter.grad is None:  # as data: a constant would make this process's graph another
            (parameter.grad,) = send([torch.zeros(parameter.shape, dtype=parameter.dtype)])
    add_up([gradient for parameter in used if (gradient := parameter.grad) is not None])
