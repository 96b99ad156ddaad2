"""The GPUs' torch runtimes against a torch.cuda that only says what it was asked: no GPU is needed, and none is proven."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hwal.errors import DeviceError
from hwal.values import Process
from hwal_cuda.torch_runtime import CudaTorchRuntime
from hwal_rocm.torch_runtime import RocmTorchRuntime
from hwal_torch import world
from hwal_torch.gpu import GpuTorchRuntime
from hwal_torch.precision import Precision
from hwal_torch.shards import scale
from tests.doubles.job import make_job


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """torch.cuda with three GPUs; what it was told."""
    told: list[tuple[str, object]] = []
    for name in ("set_device", "manual_seed"):
        monkeypatch.setattr(torch.cuda, name, lambda value, name=name: told.append((name, value)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=9))
    return told


def runtime(kind: type[GpuTorchRuntime], folder: Path, order: tuple[int, ...], own: int) -> GpuTorchRuntime:
    job = make_job(folder, framework="torch", devices=max(order) + 1)
    devices = tuple(job.plan.devices[index] for index in order)
    processes = tuple(Process(rank, (index,)) for rank, index in enumerate(order))
    plan = replace(job.plan, devices=devices, processes=processes, mesh={"dp": len(order)})
    rank = order.index(own)
    return kind(
        replace(job, plan=plan, world=replace(job.world, rank=rank, size=len(order), local_rank=rank, local_size=len(order)))
    )


@pytest.mark.parametrize("kind", (CudaTorchRuntime, RocmTorchRuntime))
def test_a_rank_takes_the_device_that_stands_in_its_place(
    kind: type[GpuTorchRuntime], tmp_path: Path, asked: list[tuple[str, object]]
) -> None:
    """The mask has the plan's devices in the plan's order: a rank's own is where it stands there, whatever its number."""
    for place, own in enumerate((2, 0, 1)):
        rt = runtime(kind, tmp_path, (2, 0, 1), own)
        assert rt.open_device() == torch.device("cuda", place)
        assert asked[-1] == ("set_device", torch.device("cuda", place))


def test_fewer_gpus_than_planned_are_an_error_with_the_build(tmp_path: Path, asked: list[tuple[str, object]]) -> None:
    rt = runtime(CudaTorchRuntime, tmp_path, (0, 1, 2, 3), 3)
    with pytest.raises(DeviceError, match="torch sees 3 GPUs, the plan has 4") as caught:
        rt.open_device()
    assert torch.__version__ in (caught.value.why or "")


def test_the_devices_generator_and_memory(tmp_path: Path, asked: list[tuple[str, object]]) -> None:
    rt = runtime(CudaTorchRuntime, tmp_path, (0,), 0)
    rt.device = rt.open_device()
    rt.seed_device(11)
    assert asked[-1] == ("manual_seed", 11)
    assert rt.memory().to_dict() == {"used": 5, "peak": 7, "total": 9, "source": "driver"}


def test_equal_bits_need_a_workspace_of_cublas(
    tmp_path: Path, asked: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    threads = torch.get_num_threads()
    try:
        told = runtime(CudaTorchRuntime, tmp_path, (0,), 0).make_deterministic()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8" and "no operation" in told


def test_another_device_in_the_place_of_the_planned_one_is_an_error(
    tmp_path: Path, asked: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA that was started before the mask was set heeds none, and would train on another GPU than was said."""
    uuids = ["aa", "bb", "cc"]
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=9, uuid=uuids[device.index])
    )
    rt = runtime(CudaTorchRuntime, tmp_path, (2, 0, 1), 2)
    devices = tuple(replace(device, id=f"GPU-{uuids[i]}") for i, device in enumerate(rt.job.plan.devices))
    rt.job = replace(rt.job, plan=replace(rt.job.plan, devices=devices))
    assert rt.open_device() == torch.device("cuda", 0)
    uuids.reverse()
    with pytest.raises(DeviceError, match="cuda:0 is GPU-cc, and the plan has GPU-aa there") as caught:
        rt.open_device()
    assert "hwal train" in (caught.value.hint or "")
    parts = tuple(replace(device, part_of="GPU-x") for device in rt.job.plan.devices)
    rt.job = replace(rt.job, plan=replace(rt.job.plan, devices=parts))
    assert rt.open_device() == torch.device("cuda", 0), "of a MIG instance drivers tell this or that"


@pytest.mark.parametrize(
    ("name", "matmul", "convolutions"), [("bf16", "high", True), ("tf32", "high", True), ("fp32", "highest", False)]
)
def test_fp32_is_fp32_and_beside_bf16_tf32_will_do(name: str, matmul: str, convolutions: bool) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        Precision(name, "cuda")
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == (matmul, convolutions)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_what_lies_in_the_hosts_memory_goes_by_gloo() -> None:
    """Shards under +offload: NCCL knows the device's memory alone."""
    assert world.backends_of("nccl", torch.device("cuda", 1)) == "cpu:gloo,cuda:nccl"
    assert world.backends_of("gloo", torch.device("cpu")) == "gloo"
    tensors = [torch.ones(2), torch.full((3,), 2.0), torch.eye(2).to_sparse()]
    scale(tensors, torch.tensor(3.0))
    assert [tensor.to_dense().sum().item() for tensor in tensors] == [6.0, 18.0, 6.0]


@pytest.mark.parametrize(("allowed", "seconds"), [(None, 1800), (60.0, 1800), (3600.0, 7200), ("off", 365 * 86400)])
def test_torchs_own_limit_ends_nothing_that_the_user_lets_be(allowed: float | str | None, seconds: int) -> None:
    assert world.longest(allowed).total_seconds() == seconds


def test_a_first_collective_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL connects within the call, where no limit of torch's holds."""
    forever = threading.Event()
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: forever.wait())
    try:
        assert world._meet(torch.zeros(2), 0.05) is None
    finally:
        forever.set()

    def fail(tensor: torch.Tensor) -> None:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    with pytest.raises(RuntimeError, match="refused"):
        world._meet(torch.zeros(2), 60)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.add_(1))
    assert world._meet(torch.zeros(2), 60) == [1.0, 1.0]
