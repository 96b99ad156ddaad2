"""build: which engine, and the argv and environment of what it starts. Pure: two calls give equal values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hwal.env import PLAN, PROCESSES, RUN_DIR, SETTINGS, WORLD, Settings
from hwal.errors import UsageError, WorldError, nearest
from hwal.launch import elastic
from hwal.launch.variables import THREADS, Wanted, settle
from hwal.launch.world import read_world
from hwal.values import AUTO, Command, Launch, Plan, Request, World

ENGINES = ("direct", "torchrun")
LATER = ("mpi", "slurm", "kubernetes")
WORKER = ("-m", "hwal.worker")
RECIPES: Mapping[str, tuple[str, ...]] = {"torch": ("-m", "hwal_torch.recipe"), "keras": ("-m", "hwal_keras.recipe")}
TEMPORARY = "(a temporary folder)"  # Launch.state_dir of a launch that has not begun


def build(plan: Plan, request: Request, wants: Wanted, world: World, environ: Mapping[str, str], run_dir: Path) -> Launch:
    """The Launch of `plan`.

    Args:
        wants: what the backend wants every rank to have.
        world: the world this process is in already; unless it is "none", hwal joins it and starts nothing. One that
            Backend.world told is not in `environ`, and goes to the worker.
        environ: this process's environment. What the user set there stays, and a note says so.

    Raises UsageError (engine, its arguments), WorldError (a world of another size than asked for).
    """
    engine, why = _engine(plan, request, world)
    _check_joined(plan, request, world)
    plan, notes = keep_threads(plan, environ)
    delta, told = settle(wants, environ)
    notes = (*notes, *told)
    arguments = request.engine_arguments
    if engine == "direct":
        if arguments:
            raise UsageError(
                "engine direct starts one process and takes no arguments",
                where=f"--engine-args {' '.join(arguments)!r}",
                hint="--engine torchrun",
            )
        asked: int | None = world.size
    else:
        nodes = elastic.nodes(arguments)
        plan = over_nodes(plan, nodes or 1)
        asked = None if nodes is None else plan.world_size
        delta = {**delta, **_agent_threads(plan, environ)}
    delta = {
        **delta,
        **settings_environment(request.settings, environ),
        PLAN: plan.to_ascii().decode("ascii"),  # a script's name in it may be no text, or none in this locale
        PROCESSES: "" if asked is None else str(asked),
        RUN_DIR: str(run_dir),
    }
    if world.launcher != "none" and read_world(environ).launcher == "none":
        delta[WORLD] = world.to_json()
    worker = (*WORKER, *_script(request, plan), *request.arguments)
    if engine == "direct":
        return Launch(engine, (Command((sys.executable, *worker), delta),), why, None, notes)
    argv = (sys.executable, "-m", "hwal_torch.torchrun", *elastic.arguments(plan.local_size, arguments), *worker)
    return Launch(engine, (Command(argv, delta),), why, TEMPORARY, notes)


def _engine(plan: Plan, request: Request, world: World) -> tuple[str, str]:
    asked = request.engine
    joined = world.launcher != "none"
    if asked == AUTO:
        if joined:
            return "direct", f"already rank {world.rank} of {world.size} under {world.launcher}: joins it and starts nothing"
        if plan.local_size == 1 and not request.engine_arguments:
            return "direct", "one process: this one becomes the worker"
        return "torchrun", f"{plan.local_size} process{'es' * (plan.local_size > 1)} on this machine"
    where = f"--engine {asked}"
    if asked in LATER:
        raise UsageError(f"engine {asked!r} is not in this version", where=where, hint="--engine " + " or ".join(ENGINES))
    if asked not in ENGINES:
        near = nearest(asked, [AUTO, *ENGINES])
        raise UsageError(
            f"unknown engine {asked!r}; there are {', '.join((AUTO, *ENGINES))}",
            where=where,
            hint=f"did you mean {near}?" if near else None,
        )
    if asked == "direct":
        if plan.local_size > 1 and not joined:
            raise UsageError(
                f"engine direct starts one process, the plan has {plan.local_size}",
                where=where,
                hint="--engine torchrun, or -n 1",
            )
        return asked, "asked for by --engine"
    if joined:
        raise UsageError(
            f"this process is rank {world.rank} of {world.size} under {world.launcher} already: torchrun inside it would start "
            "every rank anew",
            where=where,
            hint="leave --engine out to join that world",
        )
    return asked, "asked for by --engine"


def _check_joined(plan: Plan, request: Request, world: World) -> None:
    """In a world that another launcher started, its numbers must be those asked for and those planned."""
    if world.launcher == "none":
        return
    if request.processes is not None and request.processes not in (world.local_size, world.size):
        raise WorldError(
            f"-n {request.processes} was asked for, but {world.launcher} started a world of {world.size}",
            where=f"-n {request.processes}",
            why=f"inside {world.launcher} hwal joins that world and starts no process",
            hint=f"leave -n out, or start {world.launcher} with {request.processes} processes",
        )
    if plan.local_size != world.local_size:
        raise WorldError(
            f"the plan has {plan.local_size} process(es) a machine, {world.launcher} started {world.local_size} on this one",
            hint=f"plan with -n {world.local_size}, or leave --plan out",
        )


def keep_threads(plan: Plan, environ: Mapping[str, str]) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the user's own OMP_NUM_THREADS in it, where one is set, and a note that says so."""
    text = environ.get(THREADS, "")
    if not text:
        return plan, ()
    count = text.split(",")[0].strip()  # a list gives the levels of nested teams
    threads = int(count) if count.isascii() and count.isdigit() and int(count) > 0 else None
    planned = plan.processes[0].threads
    if threads is not None and all(process.threads == threads for process in plan.processes):
        return plan, ()
    plan = replace(plan, processes=tuple(replace(process, threads=threads) for process in plan.processes))
    instead = f" (hwal would take {planned} a process)" if planned is not None else ""
    return plan, (f"{THREADS}={text} is set in your environment and stays{instead}",)


def over_nodes(plan: Plan, nodes: int) -> Plan:
    """A plan of one machine, repeated on `nodes` of them: the data-parallel axis grows."""
    if nodes == 1 or plan.nodes != 1:
        return plan
    axis = next((name for name in ("dp", "fsdp") if name in plan.mesh), "dp")
    return replace(plan, nodes=nodes, mesh={**plan.mesh, axis: plan.mesh.get(axis, 1) * nodes})


def settings_environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that make a worker read exactly these settings: those left at their default are emptied if set."""
    given = settings.to_environ()
    stale = {row.variable: "" for row in SETTINGS if environ.get(row.variable) and row.variable not in given}
    return {**given, **stale}


def _agent_threads(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """torchrun warns, and gives one thread to each rank, where the variable is missing; the worker sets its rank's own."""
    threads = [process.threads for process in plan.processes if process.threads is not None]
    return {THREADS: str(min(threads))} if threads and not environ.get(THREADS) else {}


def _script(request: Request, plan: Plan) -> tuple[str, ...]:
    if request.script is not None:
        return (request.script,)
    recipe = RECIPES.get(plan.framework.value)
    if recipe is None:
        raise UsageError(
            f"there is no built-in recipe for {plan.framework.value}",
            where=f"framework {plan.framework}",
            hint="hwal train SCRIPT, or --framework " + " or ".join(RECIPES),
        )
    return recipe
