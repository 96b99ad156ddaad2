"""Keras on GPUs, without one: a stand-in for TensorFlow's list of GPUs, whose logical devices are those of this CPU. What is
computed is computed; that NCCL adds up, and that memory grows, only a GPU can show."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from hwal import shortage
from hwal.env import Settings
from hwal.errors import DeviceError, ScriptError
from hwal.host import Host
from hwal.plan import make_plan
from hwal.runtime import Job, Memory
from hwal.topology import Device
from hwal.values import Choice, Decision, Request, Target, World
from hwal_cuda import backend
from hwal_cuda.keras_runtime import CudaKerasRuntime
from hwal_keras import trouble
from hwal_keras.strategy import EARLY, take_gpus, way_to_add
from hwal_rocm.keras_runtime import RocmKerasRuntime
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import


class Gpus:
    """What is asked of TensorFlow about its GPUs. `late`: the calls that it refuses, since it has begun."""

    __version__ = "2.21.0"

    def __init__(self, count: int, late: tuple[str, ...] = (), built: str = "cuda") -> None:
        self.calls: list[str] = []
        self.seen = list(range(count))
        self._late, self._built = late, built
        self.config = SimpleNamespace(
            list_physical_devices=lambda kind: list(range(count)),
            list_logical_devices=lambda kind: [tf.config.list_logical_devices("CPU")[place] for place in self.seen],
            set_visible_devices=lambda gpus, kind: self._call("set_visible_devices", gpus),
            experimental=SimpleNamespace(
                set_memory_growth=lambda gpu, grow: self._call("set_memory_growth", [gpu]),
                get_memory_info=lambda name: {"current": 10 * int(name[-1]), "peak": 20},
            ),
        )
        self.sysconfig = SimpleNamespace(get_build_info=lambda: {f"is_{self._built}_build": True})

    def _call(self, name: str, gpus: list[int]) -> None:
        if name in self._late:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.calls.append(f"{name} {gpus}")
        self.seen = gpus if name == "set_visible_devices" else self.seen


def start(run_dir: Path, gpus: Gpus, count: int, cls: type = CudaKerasRuntime, **settings: Any) -> CudaKerasRuntime:
    run_dir.mkdir(parents=True, exist_ok=True)
    chosen = Settings(**settings)
    native = {"bf16": "tensor cores", "fp16": "tensor cores", "fp32": "CUDA cores"}
    devices = tuple(Device("cuda", index, native=native, memory_bytes=1 << 34) for index in range(count))
    request = Request(target=Target("cuda"), settings=chosen)
    plan = make_plan(Choice(Target("cuda"), "cuda", devices, "a test"), backend.caps, request, Decision("keras", "a test"))
    rt: CudaKerasRuntime = cls(Job(World(), plan, chosen, backend.caps, run_dir, "train.py"))
    rt.tensorflow = gpus
    rt.start()
    return rt


def test_one_process_trains_on_all_gpus_with_the_curve_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (1, 2):
        gpus = Gpus(count)
        with start(tmp_path / str(count), gpus, count, precision="fp32") as rt:
            assert rt.strategy.num_replicas_in_sync == count and rt.compile_options()["jit_compile"] is (count == 1)
            data = jobs.dataset()
            jobs.compiled(rt).fit(rt.feed(data), epochs=2)
            assert rt.memory() == Memory(10 * (count - 1), 20, 1 << 34, "TensorFlow's allocator")
        assert gpus.calls == [f"set_memory_growth [{place}]" for place in range(count)]
    assert jobs.losses(tmp_path / "2") == pytest.approx(jobs.losses(tmp_path / "1"), rel=1e-5)
    said = "".join(capsys.readouterr())
    assert "MirroredStrategy: 2 replicas, a whole model on each; jit_compile is off, which is for one device" in said
    assert "gradients are added up by one device (logical devices of a CPU share its memory)" in said


def test_a_shortage_is_told_with_the_memory_that_ran_short(tmp_path: Path) -> None:
    """A GPU's with what its allocator counts, the host's with the limit that the host has."""
    here = "OOM when allocating tensor with shape[4] and type float on /job:localhost/replica:0/task:0/device:"
    with start(tmp_path, Gpus(2), 2, precision="fp32") as rt:
        jobs.compiled(rt)
        whys = [
            (trouble.explain(rt, error) or pytest.fail()).why or ""
            for error in (
                tf.errors.ResourceExhaustedError(None, None, f"{here}GPU:0 by allocator GPU_0_bfc"),
                tf.errors.ResourceExhaustedError(None, None, "Out of memory while trying to allocate 4 bytes"),
                tf.errors.ResourceExhaustedError(None, None, f"{here}CPU:0 by allocator cpu"),
                MemoryError("Unable to allocate 4 GiB"),
            )
        ]
    gpu, xla, cpu, python = (why.partition("; parameters ")[0] for why in whys)
    assert gpu == xla == "10 B in use of 16.0 GiB (TensorFlow's allocator)"
    limits = [str(limit).partition(" in use of ")[2] for limit in shortage.limits(Host())]
    assert all(any(why.endswith(f" in use of {limit}") for limit in limits) for why in (cpu, python)), (cpu, limits)


def test_precision_is_the_devices(tmp_path: Path) -> None:
    try:
        with start(tmp_path, Gpus(1), 1, cls=RocmKerasRuntime) as rt:
            with rt.scope():
                assert jobs.network().layers[0].compute_dtype == "bfloat16"
            assert rt.job.plan.precision.value == "bf16"
    finally:
        tf.keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("devices", "nccl", "way"),
    [
        (["/device:GPU:0", "/device:GPU:1"], True, Decision("NCCL", "between GPUs")),
        (["/device:GPU:0", "/device:GPU:1"], False, Decision("one device", "no NCCL in this build of TensorFlow")),
        ([f"/device:GPU:{n}" for n in range(8)], True, Decision("NCCL", "between GPUs")),
        (["/device:CPU:0", "/device:CPU:1"], True, Decision("one device", "logical devices of a CPU share its memory")),
    ],
)
def test_how_gradients_come_together(devices: list[str], nccl: bool, way: Decision) -> None:
    assert way_to_add(devices, nccl) == way


def test_eight_gpus_without_nccl_add_up_in_two_halves() -> None:
    assert way_to_add([f"/device:GPU:{n}" for n in range(8)], nccl=False).value == "hierarchical copy"


def test_a_rank_of_several_sees_its_own_gpu_only() -> None:
    gpus: Any = Gpus(4)
    assert take_gpus([2], 4, gpus) == (["/device:CPU:2"], None)
    assert gpus.calls == ["set_visible_devices [2]", "set_memory_growth [2]"]


def test_memory_that_is_taken_already_is_told_unless_it_grows_anyway() -> None:
    gpus: Any = Gpus(2, late=("set_memory_growth",))
    note = f"TensorFlow had begun before hwal.start(), and has taken all memory of the GPUs; {EARLY}"
    assert take_gpus([0, 1], 2, gpus, {}) == (["/device:CPU:0", "/device:CPU:1"], note)
    assert take_gpus([0, 1], 2, gpus, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})[1] is None
    with pytest.raises(ScriptError) as caught:
        take_gpus([1], 2, Gpus(2, late=("set_visible_devices",)))
    assert caught.value.what == "TensorFlow has begun with 2 GPUs, and 1 of them are this rank's" and caught.value.hint == EARLY


@pytest.mark.parametrize(
    ("built", "why", "hint"),
    [("cuda", "cuda", "hwal devices; hwal doctor"), ("nothing", "CPUs only", "pip install 'tensorflow[and-cuda]'")],
)
def test_gpus_that_tensorflow_does_not_see(built: str, why: str, hint: str) -> None:
    with pytest.raises(DeviceError) as caught:
        take_gpus([0, 1], 2, Gpus(1, built=built))
    assert caught.value.what == "TensorFlow sees 1 GPU, the plan has 2"
    assert caught.value.why == f"TensorFlow 2.21.0 was built for {why}" and (caught.value.hint or "").startswith(hint)
