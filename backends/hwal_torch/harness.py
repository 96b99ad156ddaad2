"""Worlds of real processes for tests: a function runs on every rank with a started Runtime, and its results come back.

Ranks are forked from a server that has imported torch once, so that a world is up in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hwal.backend import Backend
from hwal.choose import choose
from hwal.detect import detect
from hwal.env import Settings
from hwal.errors import HwalError
from hwal.host import Host
from hwal.plan import make_plan
from hwal.registry import Registry
from hwal.runtime import Job
from hwal.values import Decision, Plan, Request, Target, World

Task = Callable[..., Any]
CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
PRELOAD = ("hwal_torch.suite.tasks", "hwal_torch.runtime", "torch._dynamo")  # seconds of importing
LIMIT = 240.0  # seconds for one world; XLA may compile for most of them on a busy machine


@dataclass(frozen=True)
class Outcome:
    """What became of one rank: its function's result, or the text of its error, or its exit code alone."""

    rank: int
    result: Any = None
    error: str | None = None
    exit_code: int | None = None


def plan_for(device: str, processes: int, settings: Settings, nodes: int = 1) -> tuple[Backend, Plan]:
    """The backend of a device and the plan of a torch run on it, as `hwal train --device … -n …` would make it on each node."""
    host = Host()
    registry = Registry(host)
    target = Target.parse(device, registry.names)
    backends = {backend.name: backend for backend in registry.backends() if isinstance(backend, Backend)}
    choice = choose(target, detect(host, registry, target), backends)
    backend = backends[choice.backend]
    request = Request(target=target, processes=processes, settings=settings)
    plan = make_plan(choice, backend.caps, request, Decision("torch", "the suite's"), nodes)
    backend.check(plan)
    return backend, plan


def run_world(
    device: str,
    size: int,
    task: Task,
    *args: Any,
    run_dir: Path,
    settings: Settings | None = None,
    absent: tuple[int, ...] = (),
    nodes: int = 1,
    memory: Sequence[int] = (),
    limit: float = LIMIT,
    runtime: type[Any] | None = None,
) -> list[Outcome]:
    """Runs `task(rt, *args)` on every rank of a world of `size`; ranks in `absent` are never started.

    With `nodes` the ranks take themselves to be on that many machines; with `memory` each its device to have as many bytes.

    `runtime`: a class to take in place of the backend's own.

    Ranks that have not ended after `limit` seconds are killed.

    `task` is a function of a module; its results and arguments are pickled.
    """
    settings = settings or Settings()
    backend, plan = plan_for(device, size // nodes, settings, nodes)
    CONTEXT.set_forkserver_preload([*PRELOAD, module_of(backend, plan)])  # the first world decides: the server starts once
    port = free_port()
    answers: Any = CONTEXT.Queue()
    run_dir.mkdir(parents=True, exist_ok=True)
    ranks = [rank for rank in range(size) if rank not in absent]
    processes = {
        rank: CONTEXT.Process(
            target=_rank,
            args=(
                backend,
                _with_memory(plan, memory[rank:]),
                settings,
                rank,
                size,
                port,
                run_dir,
                task,
                args,
                answers,
                runtime,
            ),
        )
        for rank in ranks
    }
    for process in processes.values():
        process.start()
    outcomes: dict[int, Outcome] = {}
    deadline = time.monotonic() + limit
    while len(outcomes) < len(ranks) and time.monotonic() < deadline:
        alive = any(process.is_alive() for process in processes.values())  # asked first: it answers before it ends
        try:
            outcome = pickle.loads(answers.get(timeout=0.2))
            outcomes[outcome.rank] = outcome
        except queue.Empty:
            if not alive:
                break
    for rank, process in processes.items():
        process.join(10 if rank in outcomes else 0)
        if process.is_alive():
            process.kill()
            process.join()
    return [outcomes.get(rank) or Outcome(rank, exit_code=processes[rank].exitcode) for rank in ranks]


def _with_memory(plan: Plan, memory: Sequence[int]) -> Plan:
    """The plan as a rank sees it whose device has memory[0] bytes; where none is given, as it is."""
    if not memory:
        return plan
    return replace(plan, devices=tuple(replace(device, memory_bytes=memory[0]) for device in plan.devices))


def _rank(
    backend: Backend,
    plan: Plan,
    settings: Settings,
    rank: int,
    size: int,
    port: int,
    run_dir: Path,
    task: Task,
    args: tuple[Any, ...],
    answers: Any,
    runtime: type[Any] | None = None,
) -> None:
    def answer(**what: Any) -> None:  # plain pickle: torch's own would share memory with a process that is about to end
        answers.put(pickle.dumps(Outcome(rank, **what)))

    multiprocessing.set_start_method(None, force=True)  # a loader's workers start as under a script, not as this process did
    os.environ["HWAL_PROGRESS"] = "off"
    os.environ.update(backend.environment(plan))
    local = plan.local_size
    place = World(rank, size, rank % local, local, "suite", "127.0.0.1", port)
    job = Job(place, plan, settings, backend.caps, run_dir, "suite")
    try:
        rt = (runtime or runtime_class(backend, plan))(job)
        rt.start()
        with rt:
            result = task(rt, *args)
        answer(result=result)
    except SystemExit as error:
        answer(exit_code=error.code if isinstance(error.code, int) else 1)
    except HwalError as error:
        answer(error=f"{type(error).__name__}: {error}")
    except BaseException:
        answer(error=traceback.format_exc())


def runtime_class(backend: Backend, plan: Plan) -> Any:
    """The backend's torch runtime class for a plan."""
    from importlib import import_module

    module, _, name = (backend.runtime(plan) or "").partition(":")
    return getattr(import_module(module), name)


def module_of(backend: Backend, plan: Plan) -> str:
    """The module of the backend's torch runtime for a plan."""
    return (backend.runtime(plan) or "").partition(":")[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
