"""begin: what hwal.start() does. Environment -> World, Plan, Job -> the Runtime of this hardware and framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from hwal.backend import Backend
from hwal.choose import choose
from hwal.display import tell
from hwal.env import DEVICE, PLAN, PROCESSES, SETTINGS, STATE_DIR, TOPOLOGY, Settings, as_given, strangers
from hwal.errors import HwalError, ScriptError, UsageError, VersionError, WorldError, nearest
from hwal.host import Host
from hwal.launch import engines
from hwal.launch.attempts import of_script
from hwal.launch.build import keep_threads
from hwal.launch.folder import hold
from hwal.launch.framework import FRAMEWORKS
from hwal.launch.place import read_plan, take_place
from hwal.launch.variables import settle, wanted
from hwal.launch.world import number, read_world, round_of, starts_again
from hwal.plan import make_plan
from hwal.plan.keras import check_backend
from hwal.plan.world import at_world
from hwal.registry import Registry
from hwal.rundir import choose_run_dir, is_new, make_run_dir, refuse_second
from hwal.runtime import Job, Runtime
from hwal.strategy_file import take_file
from hwal.survey import refuse_elsewhere, survey
from hwal.values import AUTO, Choice, Decision, Plan, Request, World

MODULES: Mapping[str, tuple[str, ...]] = {"torch": ("torch",), "keras": ("keras", "tensorflow", "tf_keras")}


@dataclass(frozen=True)
class Laid:
    """A plan, its backend, variables to set, and the lines that say how it came about (none where `hwal train` has said it)."""

    plan: Plan
    backend: Backend
    variables: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def begin(framework: str | None, environ: MutableMapping[str, str]) -> Runtime:
    """A Runtime that has joined its world. Raises HwalError."""
    if environ.get(PLAN):  # the launcher's variables may have been flags
        return _begin(framework, environ)
    with as_given(environ):
        return _begin(framework, environ)


def _begin(framework: str | None, environ: MutableMapping[str, str]) -> Runtime:
    guard_spawned()
    settings = Settings.from_environ(environ)
    world = read_world(environ)
    check_size(world, environ)
    given = read_plan(environ)
    if given is None:
        settings, laid, world = _lay(framework, settings, world, environ)
        take_place(laid.plan.processes[world.local_rank % laid.plan.local_size], environ)
        environ.update(laid.variables)
    else:
        laid = Laid(given, _backend(given.backend))
    check_plan(laid.plan, world, framework)
    plan = at_world(laid.plan, settings, world.nodes, laid.backend.caps)
    environ.update(laid.backend.rank_environment(plan, world, Host()))
    if plan.framework.value == "keras":
        check_backend(environ)
    cls = runtime_class(laid.backend, plan)
    script = sys.argv[0] if sys.argv else ""
    run_dir = choose_run_dir(settings, _stem(script), world, environ)
    while not make_run_dir(run_dir, is_new(settings, world, environ)):
        run_dir = choose_run_dir(settings, _stem(script), world, environ)
    if given is None and world.launcher == "none" and settings.micro_batch == AUTO and not environ.get(STATE_DIR):
        hold(run_dir)
        raise SystemExit(engines.run(of_script(script, sys.argv[1:], run_dir)))  # this process becomes the parent
    again = starts_again(environ)
    if environ.get(STATE_DIR) and not (environ.get(PROCESSES) or again or settings.resume):
        refuse_second(run_dir, environ)  # machines may come and go: hwal train could not know that this is the beginning
    if world.rank == 0:
        if not environ.get(STATE_DIR):  # else hwal's launcher has it
            hold(run_dir)
        for line in (*laid.lines, *(_again(plan, environ) if round_of(environ) != "0" else ())):
            tell(f"hwal: {line}")
    runtime = cls(Job(world, plan, settings, laid.backend.caps, run_dir, script, again))
    runtime.start()
    return runtime


def _again(plan: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
    machines = f"{plan.nodes} machine{'s' * (plan.nodes > 1)}"
    return (
        f"start {int(round_of(environ)) + 1} of this world: {plan.world_size} rank(s) on {machines}; strategy {plan.strategy}",
    )


def check_size(world: World, environ: Mapping[str, str]) -> None:
    """P1: a world of another size than was asked for is an error."""
    if not environ.get(PROCESSES):
        return
    asked = number(environ, PROCESSES)
    if asked != world.size:
        raise WorldError(
            f"{asked} processes were asked for, but this one is in a world of {world.size}",
            where=f"{PROCESSES}={asked}; {_whence(world)}",
            why="training would go on in separate worlds, each on its own",
            hint=f"hwal train -n {asked} script.py starts all of them" if asked > 1 else f"unset {PROCESSES}",
        )


def guard_spawned() -> None:
    """Raises ScriptError in a child that multiprocessing spawned: the script's top level ran again there."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    # A spawned child imports the script before multiprocessing calls it a child: `_inheriting` is all there is by then.
    if process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False):
        raise ScriptError(
            "hwal.start() was called in a child process",
            why="a DataLoader worker or another spawned process imports the script again, and its top level calls start()",
            hint='put the training code in main() under `if __name__ == "__main__":`',
        )


def check_plan(plan: Plan, world: World, framework: str | None) -> None:
    """The plan must be of this world and of the framework that the script asks for. Raises WorldError and ScriptError."""
    if plan.local_size != world.local_size:
        raise WorldError(
            f"the plan has {plan.local_size} process(es) a machine, the world {world.local_size} on this one",
            where=_whence(world),
            hint="start the script by hwal train, which makes both",
        )
    if framework is not None and framework != plan.framework.value:
        raise ScriptError(
            f"hwal.start({framework!r}), but the run was planned for {plan.framework}",
            where="hwal.start()",
            hint=f"hwal train --framework {framework} …",
        )


def runtime_class(backend: Backend, plan: Plan) -> type[Runtime]:
    """Imports the backend's Runtime for a plan. Raises VersionError when there is none or its package is missing."""
    target, framework = backend.runtime(plan), plan.framework
    if target is None:
        there = " and ".join(backend.runtimes) or "none"
        raise VersionError(
            f"backend {backend.name} has no {framework.value} runtime; there is {there}", why=f"framework {framework}"
        )
    module, _, name = target.partition(":")
    extra = backend.extra or framework.value
    try:
        cls = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "hwal" or package.startswith("hwal_") or not package:
            raise HwalError(f"backend {backend.name} cannot be loaded: {error}", where=target, hint="reinstall hwal") from error
        raise VersionError(
            f"{package} is not installed",
            where=f"{backend.name} with {framework}",
            hint=f"pip install 'hwal[{extra if package in MODULES['torch'] else framework.value}]'",
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, Runtime)):
        raise TypeError(f"{target} is no hwal.runtime.Runtime")
    return cls


def _lay(framework: str | None, settings: Settings, world: World, environ: Mapping[str, str]) -> tuple[Settings, Laid, World]:
    """The plan of a script that no launcher of hwal's started: detect, choose and plan happen right here, on every rank.

    And the settings, with those of the file that --strategy names, and the world, with the machines that the backend knows of.
    """
    name = settings.strategy
    settings, file, told = take_file(settings, {row.field for row in SETTINGS if environ.get(row.variable)})
    if file is not None and file.processes not in (None, world.local_size):
        told += (f"{world.local_size} process(es) here, not the {file.processes} of {name}: hwal train starts as many",)
    paper = environ.get(TOPOLOGY) or None
    found = survey(paper, environ.get(DEVICE) or AUTO)
    decided = decide(framework, sys.modules)
    choice = choose(found.target, found.probes, found.backends, world.local_size, world.launcher == "none", decided.value)
    backend = found.backends[choice.backend]
    refuse_elsewhere(paper, choice, backend)
    wrap = None if file is None else file.wrap
    request = Request(target=found.target, processes=world.local_size, wrap=wrap, settings=settings)
    plan = make_plan(choice, backend.caps, request, decided, world.nodes)
    backend.check(plan)
    if world.launcher == "none" and found.machine is not None:
        world = backend.world(plan, found.machine) or world
        plan = at_world(plan, settings, world.nodes, backend.caps)
    plan, notes = keep_threads(plan, environ)
    variables, settled = settle(wanted(backend, plan, found.probe_of(backend.name), found.host_of_devices), environ)
    lines = _lines(choice, plan, world, (*told, *strangers(environ), *plan.notes, *notes, *settled))
    return settings, Laid(plan, backend, variables, lines), world


def decide(framework: str | None, modules: Mapping[str, object]) -> Decision:
    """The framework of a script that runs already: what start() was given, else what is imported, else torch."""
    if framework is not None:
        if framework not in FRAMEWORKS:
            near = nearest(framework, FRAMEWORKS)
            raise UsageError(
                f"hwal.start({framework!r}): unknown framework; there are {' and '.join(FRAMEWORKS)}",
                hint=f"did you mean {near!r}?" if near else None,
            )
        return Decision(framework, f"hwal.start({framework!r})")
    found = {name: next((m for m in names if m in modules), None) for name, names in MODULES.items()}
    here = {name: module for name, module in found.items() if module is not None}
    if len(here) > 1:
        raise ScriptError(
            f"both {' and '.join(here.values())} are imported: which of them trains?",
            where="hwal.start()",
            hint='hwal.start("torch"), or hwal.start("keras")',
        )
    for name, module in here.items():
        return Decision(name, f"the script has imported {module}")
    return Decision("torch", "the script has imported no framework yet, and torch is the default")


def _lines(choice: Choice, plan: Plan, world: World, notes: Sequence[str]) -> tuple[str, ...]:
    size = f"rank {world.rank} of {world.size} under {world.launcher}" if world.launcher != "none" else "one process"
    return (
        str(choice),
        f"{size}; framework {plan.framework}; precision {plan.precision}",
        *(f"note: {note}" for note in notes),
    )


def _whence(world: World) -> str:
    return "no launcher's variables in the environment" if world.launcher == "none" else f"world from {world.launcher}"


def _backend(name: str) -> Backend:
    """The backend that a plan names."""
    registry = Registry(Host())
    if name not in registry.names:
        raise UsageError(
            f"the plan names backend {name!r}, which is not installed", hint=f"there are {', '.join(registry.names)}"
        )
    return registry.load(name)


def _stem(script: str) -> str:
    stem = Path(script).stem
    return {"": "session", "-c": "session", "-m": "session", "ipykernel_launcher": "notebook"}.get(stem, stem)
