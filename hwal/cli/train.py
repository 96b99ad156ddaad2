"""`hwal train`: one straight line from the command line to the processes that train."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hwal.choose import choose
from hwal.cli import show, tell
from hwal.cli.flags import BARE, Given, help_text, read, recipe_arguments
from hwal.cli.recipe_flags import check_recipe
from hwal.display import progress_mode
from hwal.env import DEVICE, SETTINGS, TOPOLOGY, Settings, as_given, strangers
from hwal.errors import EXIT_OK, UsageError, VersionError
from hwal.host import Host
from hwal.launch import build, elastic, run
from hwal.launch.build import RECIPES
from hwal.launch.folder import hold
from hwal.launch.framework import framework_of, read_source
from hwal.launch.variables import wanted
from hwal.launch.world import read_world
from hwal.plan import make_plan
from hwal.plan.given import choice_of, read_plan
from hwal.plan.keras import check_backend
from hwal.plan.world import at_world
from hwal.retention import read_keep
from hwal.rundir import choose_run_dir, is_new, make_run_dir, newest_run
from hwal.strategy_file import take_file
from hwal.survey import Survey, refuse_elsewhere, survey
from hwal.values import AUTO, Choice, Launch, Plan, Process, Request, World

PACKAGES = {"keras": (("keras",), ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-rocm"))}
"""Framework -> the distributions that it needs, of each the names it may have; elsewhere the framework's own name."""
RECIPE = "recipe"  # what the built-in recipe's runs are called
NOT_THE_SCRIPTS = ("--device", "-n", "--processes", "--engine", "--strategy", "--virtual-ranks", "--dry-run")


def main(argv: Sequence[str]) -> int:
    given = read(argv)
    if given.help:
        show(help_text())
        return EXIT_OK
    with as_given(os.environ, given.flags):
        return _train(given)


def _train(given: Given) -> int:
    environ = os.environ
    progress_mode(environ)  # a wrong one is told now, not by every rank
    world = read_world(environ)
    request, notes = _request(given, environ, world)
    paper = environ.get(TOPOLOGY) or None
    found = survey(paper, given.flags.get("device") or environ.get(DEVICE) or AUTO)
    request = replace(request, target=found.target)
    source = None if request.script is None else read_source(request.script)
    choice, plan = _plan(request, found, source, world)
    backend = found.backends[plan.backend]
    backend.check(plan)
    if world.launcher == "none" and found.machine is not None and not request.engine_arguments:
        world = backend.world(plan, found.machine) or world
        plan = at_world(plan, request.settings, world.nodes, backend.caps)
    joins = elastic.nodes(request.engine_arguments) is None
    run_dir = choose_run_dir(request.settings, _stem(request.script), world, environ, joins)
    wants = wanted(backend, plan, found.probe_of(plan.backend), found.host_of_devices)
    launch = build(plan, request, wants, world, environ, run_dir)
    if not given.flags.get("dry_run"):
        refuse_elsewhere(paper, choice, backend)
        _check_installed(plan, backend.extra, environ)
        while not make_run_dir(run_dir, is_new(request.settings, world, environ)):
            run_dir = choose_run_dir(request.settings, _stem(request.script), world, environ)
            launch = build(plan, request, wants, world, environ, run_dir)
        if world.rank == 0 and elastic.nodes(request.engine_arguments) == 1:  # several machines share it
            hold(run_dir)
    if world.rank == 0:
        notes += (*plan.notes, *(launch.notes if given.flags.get("dry_run") else ()))  # else the engine prints its own
        tell("\n".join(_story(choice, plan, launch, run_dir, (*notes, *strangers(environ)))))
    if given.flags.get("dry_run"):
        document = {"choice": choice.to_dict(), "plan": plan.to_dict(), "launch": launch.to_dict()}
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        show(json.dumps(document, indent=2, ensure_ascii=not utf8, allow_nan=False))
        return EXIT_OK
    return run(launch)


# from the command line to a Request


def _request(given: Given, environ: Mapping[str, str], world: World) -> tuple[Request, tuple[str, ...]]:
    """The Request, its target still open, and what should be told about it."""
    flags, script = given.flags, given.script
    settings, notes = _settings(given, environ)
    name, explicit = settings.strategy, {row.field for row in SETTINGS if row.field in flags or environ.get(row.variable)}
    settings, file, told = take_file(settings, explicit)
    notes += told
    processes = flags.get("processes")
    if file is not None and file.processes is not None:
        if processes is None and world.launcher == "none":
            processes = file.processes
        elif file.processes != (started := processes or world.local_size):
            notes += (f"{started} process(es) here, not the {file.processes} of {name}",)
    own = recipe_arguments(given)
    check_recipe(flags)
    late = [name for name in given.arguments if name in NOT_THE_SCRIPTS]
    if late:
        notes += (f"{late[0]} stands behind {script} and goes to it; hwal's own flags go before",)
    request = Request(
        script=script,
        arguments=given.arguments or own,
        processes=processes,
        engine=flags.get("engine") or AUTO,
        engine_arguments=_words(flags.get("engine_args")),
        framework=flags.get("framework"),
        plan=flags.get("plan"),
        wrap=None if file is None else file.wrap,
        settings=settings,
    )
    return request, notes


def _settings(given: Given, environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Variables first, flags over them; a flag that says otherwise than a variable is told."""
    flags = {row: given.flags[row.field] for row in SETTINGS if row.field in given.flags}
    overridden = {row.variable for row in flags}
    settings = Settings.from_environ({name: text for name, text in environ.items() if name not in overridden})
    settings = replace(settings, **{row.field: value for row, value in flags.items() if value != BARE})
    notes = tuple(
        f"{row.flag} {value} overrides {row.variable}={environ[row.variable]}"
        for row, value in flags.items()
        if environ.get(row.variable) and value is not True and value != BARE and environ[row.variable] != str(value)
    )
    if given.flags.get("resume") == BARE:
        program = given.script or " ".join(RECIPES.get(given.flags.get("framework") or "torch", ()))
        newest, why = newest_run(program, _stem(given.script)) if settings.out is None else (Path(settings.out), "")
        settings = replace(settings, resume=None if newest is None else str(newest))
        if newest is None:
            notes += (f"nothing to go on with: {why}: begins from the start",)
        elif any(newest.glob("checkpoints/step-*")):  # else rank 0 says that it begins from the start
            notes += (f"going on with {newest}",)
    read_keep(settings.keep)  # a wrong one is told now, not by every rank
    return settings, notes


def _stem(script: str | None) -> str:
    return RECIPE if script is None else Path(script).stem or RECIPE


def _words(text: str | None) -> tuple[str, ...]:
    if not text:
        return ()
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"--engine-args cannot be split into words: {error}",
            where=f"--engine-args {text!r}",
            hint="as one word of the shell's, quotes closed: --engine-args '--nnodes 2'",
        ) from None


# from a Request to a Plan


def _plan(request: Request, found: Survey, source: str | None, world: World) -> tuple[Choice, Plan]:
    if request.plan is not None:
        plan = read_plan(_text(request.plan), request.plan)
        choice = choice_of(plan, found.probes, request)
        if plan.backend not in found.backends:
            raise UsageError(
                f"no backend {plan.backend!r} is installed here", where=f"--plan {request.plan}", hint="hwal devices"
            )
        machines = elastic.nodes(request.engine_arguments) if world.launcher == "none" else world.nodes
        if machines is not None:  # else the ranks see how many there are
            plan = at_world(plan, request.settings, machines, found.backends[plan.backend].caps)
        return choice, plan
    framework = framework_of(source, request.script, request.framework)
    nodes, for_all = elastic.most_nodes(request.engine_arguments), world.launcher == "none"
    if not for_all:  # the world is there already, and the plan describes it
        request, nodes = replace(request, processes=world.local_size), world.nodes
    choice = choose(found.target, found.probes, found.backends, request.processes, for_all, framework.value)
    return choice, make_plan(choice, found.backends[choice.backend].caps, request, framework, nodes)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the plan {path}: {getattr(error, 'strerror', None) or error}",
            where=f"--plan {path}",
            hint="hwal train --dry-run … > FILE writes one",
        ) from None


def _check_installed(plan: Plan, extra: str, environ: Mapping[str, str]) -> None:
    framework, host = plan.framework.value, Host()
    if framework == "keras":
        check_backend(environ)
    for names in PACKAGES.get(framework, ((framework,),)):
        if not any(host.version(name) for name in names):
            raise VersionError(
                f"{names[0]} is not installed",
                why=f"framework {plan.framework}",
                hint=f"pip install 'hwal[{extra if framework == 'torch' and extra else framework}]'",
            )


# what is told


def _story(choice: Choice, plan: Plan, launch: Launch, run_dir: Path, notes: Sequence[str]) -> list[str]:
    rows = [
        ("device", str(choice)),
        ("processes", _processes(plan)),
        ("precision", str(plan.precision)),
        ("framework", str(plan.framework)),
        ("strategy", str(plan.strategy)),
        ("engine", f"{launch.engine} ({launch.why})"),
        ("run", str(run_dir)),
    ]
    return [f"hwal: {name:<9} {text}" for name, text in rows] + [f"hwal: note: {note}" for note in notes]


def _processes(plan: Plan) -> str:
    """`2 × 4 threads on cores 0-3 | 4-7`."""
    from hwal.cli.devices import ranges

    def threads(process: Process) -> str:
        devices = f" of {len(process.devices)} devices" if len(process.devices) > 1 else ""
        if process.threads is None:
            return f"process{devices}, threads left to the framework"
        return f"{process.threads} thread" + "s" * (process.threads > 1) + devices

    kinds = dict.fromkeys(map(threads, plan.processes))
    text = f"{plan.local_size} × {' or '.join(kinds)}"
    if all(process.cores is not None for process in plan.processes):
        text += " on cores " + " | ".join(ranges(process.cores or ()) for process in plan.processes)
    return text + (f", on each of {plan.nodes} machines" if plan.nodes > 1 else "")
