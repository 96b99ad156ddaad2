"""The engines with real processes: exit codes, who failed first, signals, no orphans."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import pytest

from .runs import JOIN, ROOT, Run, finish

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and process groups")]
torch = pytest.importorskip("torch")


def test_direct_and_torchrun_train_and_return_0(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    code, said = run("--device", "null:1")
    assert (code, "rank 0 of 1" in said) == (0, True), said
    code, said = run("--device", "null:2")
    assert code == 0 and "rank 0 of 2" in said and "total 2" in said and "rank 1 of" not in said, said
    assert "rank 1 of 2" in run.log(1) and "total 2" in run.log(1)
    assert not (run.folder / "run" / "state").exists()


def test_the_failing_rank_is_named_with_its_lines(make: Callable[[str], Run]) -> None:
    body = "if rt.rank == 1: raise ValueError('planted')\n        torch.distributed.all_reduce(total)"
    run = make(JOIN.format(body=body))
    code, said = run("--device", "null:2")
    assert code == 1
    assert "hwal: rank 1 of 2 on null:1 failed first: ValueError: planted" in said
    assert "all of it: run/logs/rank-1.log" in said and 'File "train.py"' in said
    assert "worker.py" not in said and "ChildFailedError" not in said and "Root Cause" not in said
    assert "reset by peer" not in said.lower() and "closed by peer" not in said.lower()  # rank 0's own complaint


def test_rank_0s_error_is_shown_once(make: Callable[[str], Run]) -> None:
    """And ends rank 1, which sleeps, and holds torchrun's SIGTERM for the wish to save."""
    run = make(JOIN.format(body="if rt.rank == 0: raise ValueError('planted')\n        time.sleep(1000)"))
    code, said = run("--device", "null:2")
    assert code == 1 and said.count("ValueError: planted") == 2  # the first line, and the traceback's last
    assert "rank 0 of 2 on null:0 failed first" in said
    assert "ValueError: planted" in run.log(0)


def test_a_failed_rank_that_does_not_get_to_its_end_is_ended(make: Callable[[str], Run]) -> None:
    body = "import threading; threading.Thread(target=time.sleep, args=(1000,)).start(); raise ValueError('planted')"
    code, said = make(JOIN.format(body=body))("--device", "null:2")
    assert code == 1 and "failed first: ValueError: planted" in said, said


def test_the_ranks_that_are_ended_with_it_are_not_blamed(make: Callable[[str], Run]) -> None:
    """Rank 0 waits for a rank that failed, in a script that hwal does not watch, and both are ended in the same moment."""
    script = """
import os, threading, time
if os.environ["RANK"] == "1":
    threading.Thread(target=time.sleep, args=(1000,)).start()
    raise ValueError("planted")
time.sleep(1000)
"""
    code, said = make(script)("--device", "null:2")
    assert code == 1 and "hwal: rank 1 of 2 on null:1 failed first: ValueError: planted" in said, said
    assert "SIGKILL" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's out-of-memory killer")
def test_a_killed_rank_is_named(make: Callable[[str], Run]) -> None:
    body = (
        "if rt.rank == 1: print('last words', flush=True); os.kill(os.getpid(), 9)\n        torch.distributed.all_reduce(total)"
    )
    code, said = make(JOIN.format(body=body))("--device", "null:2")
    assert code == 1 and "rank 1 of 2 on null:1 was killed by SIGKILL: the kernel's out-of-memory killer" in said, said
    assert "last words" in said


def test_a_script_that_never_joins_is_stopped(make: Callable[[str], Run]) -> None:
    script = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("stepped")
"""
    code, said = make(script)("--device", "null:2")
    assert code == 1 and "2 processes were started, but they train apart" in said and "stepped" not in said, said
    code, said = make(script)("--device", "null:1")
    assert code == 0 and "stepped" in said and "never called hwal.start()" in said


def test_plain_ddp_passes_and_the_guard_is_gone_after_one_step(make: Callable[[str], Run]) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
before = len(hooks)
optimizer.step()
print("stepped", dist.get_world_size(), before, len(hooks))
dist.barrier()
del model, optimizer  # torch aborts now and then when ddp outlives its group
dist.destroy_process_group()
"""
    code, said = make(script)("--device", "null:2")
    assert code == 0 and "stepped 2 1 0" in said, said


ACCELERATE = """
import atexit, torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(1, 2)).sum())
optimizer.step()
print("stepped", accelerator.num_processes)
atexit.register(lambda: print("a group is left:", torch.distributed.is_initialized()))
"""


def test_accelerate_passes_where_it_trains_together(make: Callable[[str], Run]) -> None:
    pytest.importorskip("accelerate")
    run = make(ACCELERATE)
    code, said = run("--device", "null:2", ACCELERATE_USE_CPU="true")
    assert code == 0 and "stepped 2" in said and "a group is left: False" in said, said
    code, said = run("--device", "null:2", ACCELERATE_USE_CPU="false")  # it makes a group of two, and ignores it
    assert code == 1 and "accelerate counts 1 process(es)" in said, said


def test_transformers_trainer_passes(make: Callable[[str], Run]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    script = """
import torch
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        y = self.line(x)
        return {"loss": (y ** 2).mean(), "logits": y}
data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 16
options = TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(Model(), options, train_dataset=data)
trainer.train()
print("stepped", options.world_size)
"""
    code, said = make(script)("--device", "null:2")
    assert code == 0 and "stepped 2" in said, said


def test_a_world_that_exists_is_joined(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    code, said = finish(run.program([*torchrun, "-m", "hwal", "train", "--device", "null:2", "train.py"]))
    assert code == 0 and "joins it and starts nothing" in said and said.count("total 2") == 2, said
    assert len(list((run.folder / "runs").iterdir())) == 1  # the ranks agree on the folder
    code, said = finish(run.program([*torchrun, "train.py"], HWAL_DEVICE="null:2"))
    assert code == 0 and said.count("total 2") == 2, said
    code, said = finish(run.program([*torchrun, "-m", "hwal", "train", "-n", "4", "train.py"]))
    assert code != 0 and "-n 4 was asked for, but torchrun started a world of 2" in said, said


def test_a_taken_port_is_named_at_once(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flags in (
            f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port}",
            f"--master-addr 127.0.0.1 --master-port {port}",
        ):
            code, said = run("--device", "null:2", f"--engine-args={flags}")
            assert code == 1 and f"the port of 127.0.0.1:{port} is in use" in said, said
            assert "Traceback" not in said


def test_engine_arguments_that_torchrun_refuses_are_a_usage_error(make: Callable[[str], Run]) -> None:
    code, said = make("pass")("--device", "null:2", "--engine-args=--nope")
    assert code == 2 and "torchrun refuses --engine-args: unrecognized arguments: --nope" in said and "usage:" not in said, said


def test_a_usage_error_of_a_rank_keeps_its_code(make: Callable[[str], Run]) -> None:
    run = make("import torch, hwal\nhwal.start('keras')")
    code, said = run("--device", "null:2")
    assert code == 1 and "planned for torch" in said and "Traceback" not in said, said
    run = make("from hwal.errors import UsageError\nraise UsageError('wrong', hint='right')")
    code, said = run("--device", "null:2")
    assert code == 2 and "hwal: error: wrong" in said, said


def test_two_runs_at_once_do_not_meet(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    argv = [sys.executable, "-m", "hwal", "train", "--device", "null:2", "--out"]
    both = [run.program([*argv, out, "train.py"]) for out in ("a", "b")]
    assert [finish(process)[0] for process in both] == [0, 0]


def test_it_works_from_a_clone_in_any_folder_and_leaves_no_temporary_files(make: Callable[[str], Run]) -> None:
    run = make("import hwal, sys\nprint('hwal at', hwal.__file__)\nsys.exit(hwal.__version__ == '')")
    code, said = run("--device", "null:2")
    assert code == 0 and f"hwal at {ROOT / 'hwal' / '__init__.py'}" in said, said
    assert [path.name for path in run.tmp.iterdir() if path.name.startswith(("hwal-", "torchelastic"))] == []


def test_two_nodes_meet_on_one_machine(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = f"--engine-args=--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1"
    both = [run.popen("--device", "null:1", nodes) for _ in range(2)]
    ended = [finish(process) for process in both]
    assert [code for code, _ in ended] == [0, 0], ended
    assert sum("rank 0 of 2" in said and "total 2" in said for _, said in ended) == 1
    assert "rank 1 of 2" in run.log(1) and "total 2" in run.log(1)


def test_a_rank_0_that_never_comes_is_told_in_words(make: Callable[[str], Run]) -> None:
    run = make(JOIN.format(body="pass"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    code, said = finish(run.program([sys.executable, "train.py"], **world, HWAL_DEVICE="null:2", HWAL_START_TIMEOUT="1"))
    assert code == 1 and said.splitlines()[0] == "hwal: error: rank 0 did not answer within 1 s", said
    assert "frame #" not in said
