"""The far end of the line: environment -> World -> Runtime (`hwal.start()`), and the program that runs the script.

python -m hwal.worker SCRIPT args…        python -m hwal.worker -m MODULE args…
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, overload

from hwal.display import tell
from hwal.env import PROCESSES, RESUME, RUN_DIR, STATE_DIR
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, CheckpointError, HwalError, LostRankError, Preempted, ScriptError
from hwal.launch.folder import drop_empty
from hwal.launch.outcome import is_lost_peer
from hwal.launch.place import read_plan, take_place
from hwal.launch.script import install_excepthook, name_of, run_script, told, traceback_lines
from hwal.launch.station import Station
from hwal.launch.terminal import outlive_terminal
from hwal.launch.world import read_world
from hwal.preempt import StopRequest, earlier, ignore, nothing_to_save, rank_code, release
from hwal.runtime import KerasRuntime, Runtime, TorchRuntime
from hwal.values import Plan, Process, World

# Framework -> what stops a script that trains in several processes which do not talk to each other (P1).
GUARDS = {"torch": "hwal_torch.guard:install"}
LEAVE = "hwal_torch.guard:leave"  # what takes down the world that such a script has made
QUIET = {"keras": "hwal_keras.quiet:install"}  # framework -> what keeps what is no error off the terminal at its import

_started: list[Runtime] = []  # the runtimes of this process, so that a second start() is seen and a forgotten end() is made


@overload
def start() -> TorchRuntime: ...
@overload
def start(framework: Literal["torch"]) -> TorchRuntime: ...
@overload
def start(framework: Literal["keras"]) -> KerasRuntime: ...
def start(framework: str | None = None) -> Runtime:
    """Joins the world that this process was started in and returns its Runtime.

    Under plain `python` that is a world of one, on the device that HWAL_DEVICE names (default auto). `framework` is only
    needed where a script imports both torch and Keras.

    Raises HwalError; what it says needs no traceback.
    """
    from hwal.starting import begin

    if (name := earlier()) is not None:
        raise Preempted(signal=name)
    if not _started:
        install_excepthook(_after_error)  # for plain python: the worker lets no error get there
    if any(not runtime.ended for runtime in _started):
        raise ScriptError("hwal.start() was called twice", hint="call it once: `with hwal.start() as rt:`, and pass rt on")
    runtime = begin(framework, os.environ)
    if not _started:
        atexit.register(end_forgotten)  # for plain python too
    _started.append(runtime)
    return runtime


@dataclass(frozen=True)
class Ending:
    """How the script ended. `error`: one line, None after success; `lines`: what to show of it."""

    code: int
    error: str | None = None
    lines: tuple[str, ...] = ()
    lost_peer: bool = False
    preempted: bool = False
    alone: bool = False
    of_world: bool = False


def main(argv: Sequence[str], last: bool = False) -> int:
    """Runs the script in this rank's place, and returns the exit code. `last`: the process ends with it."""
    station: Station | None = None
    error: BaseException | None = None
    world = World()
    faulthandler.enable()  # a crash of native code leaves the line of Python that it came from
    stop = StopRequest(at_once=True)
    stop.install()
    outlive_terminal()
    try:
        world = read_world(os.environ)
        plan = read_plan(os.environ)
        process = plan.processes[world.local_rank % plan.local_size] if plan else Process(world.local_rank, ())
        if os.environ.get(STATE_DIR):
            station = Station(os.environ, world, _device(plan, process))
        release()
        take_place(process, os.environ)
        if plan is not None:
            _prepare(plan, os.environ)
        run_script(argv)
        if not _started:
            _never_started(name_of(argv), world)
    except BaseException as raised:
        error = stop.meant(raised)
    stop.at_once, stop.too_late = False, True  # before all else: a signal must not interrupt what is left
    if isinstance(error, Exception):
        error = _explained(error)
    ending = _ending(error, name_of(argv), world)
    if ending.code == EXIT_OK:
        try:
            end_forgotten(error)
        except Exception as late:
            error, ending = late, _ending(late, name_of(argv), world)
        if not _started and "torch.distributed" in sys.modules:
            _named(LEAVE)()
    if os.environ.get(RUN_DIR) and (ending.code != EXIT_OK or not _started):
        drop_empty(Path(os.environ[RUN_DIR]))
    _show(ending, station)
    if station is not None:
        how = (ending.lost_peer, ending.preempted, ending.alone, ending.of_world)
        station.leave(ending.code, ending.error, ending.lines, *how)
    if ending.code != EXIT_OK:
        with suppress(Exception):  # the first error is the one that counts
            end_forgotten(error)
        if station is None and not ending.preempted:  # else the launcher says so
            _say_what_is_left(error, ending.code)
    if not last:
        stop.uninstall()
    return ending.code


def _explained(error: Exception) -> Exception:
    """What the Runtime says of an error that left the script without passing `with hwal.start()`, which would have asked it."""
    for runtime in _started:
        if not runtime.ended:
            try:
                runtime.__exit__(type(error), error, error.__traceback__)
            except HwalError as told:
                return told
    return error


def end_forgotten(error: BaseException | None = None) -> None:
    """Ends the runtimes that the script did not: it died outside of `with`, or never called end()."""
    for runtime in _started:
        if not runtime.ended:
            runtime.end(error)


def _device(plan: Plan | None, process: Process) -> str:
    return f"{plan.backend}:{','.join(map(str, process.devices))}" if plan else "unknown device"


def _prepare(plan: Plan, environ: Mapping[str, str]) -> None:
    asked = environ.get(PROCESSES, "")
    target = GUARDS.get(plan.framework.value)
    if target is not None and asked.isdigit() and int(asked) > 1:
        _named(target)(int(asked))
    if (target := QUIET.get(plan.framework.value)) is not None:
        _named(target)()


def _named(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _never_started(script: str, world: World) -> None:
    if world.rank == 0:
        tell(
            f"hwal: note: {script} ran, but it never called hwal.start(): "
            "hwal's precision, strategy and checkpoints did not apply\n"
            "  try:   import hwal\n"
            "         with hwal.start() as rt: …"
        )


def _ending(error: BaseException | None, script: str, world: World) -> Ending:
    if error is None:
        return Ending(EXIT_OK)
    if isinstance(error, Preempted):
        code = error.code if isinstance(error.code, int) else EXIT_PREEMPTED
        if error.signal is None:
            return Ending(code, preempted=True)
        if error.told:
            return Ending(code, preempted=True, alone=True)
        when = "after the last step" if _started else "before hwal.start()"
        code, line = _out_of_run(error.signal, when, world, os.environ)
        return Ending(code, lines=(line,), preempted=True, alone=not _started)  # after it, no other rank waits for this one
    if isinstance(error, HwalError):
        lost = isinstance(error, LostRankError)
        return Ending(error.exit_code, error.what, tuple(told(error)), lost or is_lost_peer(str(error)), of_world=lost)
    if isinstance(error, SystemExit):
        return _exited(error.code, script)
    if isinstance(error, KeyboardInterrupt):
        when = "by the script itself" if _started else "before hwal.start() could take the signal: nothing was saved"
        return Ending(EXIT_FAILED, "interrupted", (f"hwal: interrupted {when}",))
    text = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(": ")
    return Ending(EXIT_FAILED, text, tuple(traceback_lines(error)), is_lost_peer(str(error)))


def _out_of_run(signal: str, when: str, world: World, environ: Mapping[str, str]) -> tuple[int, str]:
    """The exit code after a signal before hwal.start(), or after the run, and what to say of it."""
    from hwal.resuming import source_of

    source = source_of(Path(environ.get(RUN_DIR) or os.devnull), environ.get(RESUME))
    trained = any(runtime.steps_done for runtime in _started)
    code, line = nothing_to_save(signal, when, source, trained=trained)
    return rank_code(code, world.launcher), f"hwal: {line}"


def _after_error(error: BaseException, code: int) -> None:
    """What is left to do where an error has ended a script under plain python."""
    with suppress(Exception):  # the first error is the one that counts
        end_forgotten(error)
    _say_what_is_left(error, code)


def _say_what_is_left(error: BaseException | None, code: int) -> None:
    """After a failure: the checkpoint to go on from, if there is one."""
    runtime = _started[-1] if _started else None
    if runtime is None or not runtime.is_main or code != EXIT_FAILED or isinstance(error, CheckpointError):
        return
    from hwal.resuming import after_failure

    if (word := after_failure(runtime.run_dir, runtime.job.settings.resume)) is not None:
        tell(word)


def _exited(code: Any, script: str) -> Ending:
    """sys.exit() of the script: None and 0 are success, a text is printed, any other number becomes 1, with a line."""
    if code is None or code == 0:
        return Ending(EXIT_OK)
    if isinstance(code, int):
        text = f"{script} exited with code {code}"
        return Ending(EXIT_FAILED, text, (f"hwal: {text}",))
    return Ending(EXIT_FAILED, f"{script} exited: {code}", (str(code),))


def _show(ending: Ending, station: Station | None) -> None:
    """Rank 0 of a launcher's world leaves its error to the launcher, which knows whether it was the first."""
    try:
        sys.stdout.flush()
    except OSError as error:
        tell(f"hwal: note: what was printed last could not be written: {error.strerror}")
        with suppress(OSError):  # the interpreter tries once more, and would end with a code of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (AttributeError, ValueError):  # closed, or not there at all
        pass
    if ending.lines and not (station is not None and station.is_main):
        tell("\n".join(ending.lines))


if __name__ == "__main__":
    # The script imports hwal.worker by name: that module, not this copy called __main__, must hold the runtimes.
    from hwal.worker import main as run_worker

    atexit.register(ignore)  # the first to be registered is the last to be called; what comes then takes torch a moment
    sys.exit(run_worker(sys.argv[1:], last=True))
