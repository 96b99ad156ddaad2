"""StopRequest: a signal that asks a run to save and end."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from hwal.env import RESUME, STATE_DIR, has_flags, spelled
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, Preempted

LINGER = 30  # seconds that a loader's worker works on after SIGTERM
SECOND = 2.0  # seconds after which another thread, which looks once a second, takes a signal for a second one
ECHO = 0.5  # seconds in which a second signal is the same one: wrappers pass on a Ctrl-C that the terminal sent to all
END = getattr(signal, "SIGQUIT", signal.SIGTERM)  # by which a launcher ends its agent: no scheduler sends it
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")


def numbers() -> list[int]:
    """The signals that ask for an end: those that this system has. SIGHUP does not under nohup, which has it ignored."""
    found = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    return [number for number in found if number.name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN]


def go_on(source: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> str:
    """What to type to go on; in a Slurm job, what its script has to say so that it goes on by itself when it is requeued.
    `environ`: as in hwal.env.spelled."""
    told = f"go on with {spelled('resume', source, environ)}"
    if os.environ.get("SLURM_JOB_ID"):
        again = f"--resume {source}" if has_flags(environ) else str(source)
        requeued = ("" if has_flags(environ) else f"{RESUME}=") + f"${{SLURM_RESTART_COUNT:+{again}}}"
        told += f"; in a job script {requeued} says so where the job was requeued"
    return told


def nothing_to_save(
    name: str,
    when: str,
    source: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None = None,
    trained: bool = False,
) -> tuple[int, str]:
    """The exit code after a signal when there was nothing to save, and the words. `source`: what there is to go on from.
    `trained`: it came after steps, which only the script can have saved. `environ`: as in hwal.env.spelled."""
    if source is not None:
        return EXIT_PREEMPTED, f"{name} {when}: {go_on(source, environ)}"
    lost = "what was trained is lost, unless the script has saved it" if trained else "nothing is lost"
    return EXIT_FAILED, f"{name} {when}: {lost}, and there is no checkpoint to go on from"


def rank_code(code: int, launcher: str) -> int:
    """A rank's exit code for that of a preempted run: torchrun takes any but 0 for a failure and would start the ranks again.
    hwal's launcher knows what 0 stands for."""
    return EXIT_OK if os.environ.get(STATE_DIR) or (launcher == "torchrun" and code == EXIT_PREEMPTED) else code


def passed_on(state_dir: str | os.PathLike[str], pid: int) -> Path:
    """The file that a launcher leaves before it passes a signal on to the rank `pid`, which may have had it from elsewhere."""
    return Path(state_dir) / f"passed-on-{pid}"


@contextmanager
def blocked() -> Iterator[None]:
    """These signals wait: a process started within begins with them waiting, until it can take them (release)."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release() -> None:
    """Takes the signals that have waited since this process began."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers())


def leave_to_launcher(end: Callable[[], Any] = lambda: os._exit(EXIT_FAILED)) -> None:
    """In the agent between a launcher and its ranks: what reaches all processes of a job would cost the ranks that save at it.
    Only END, which a launcher sends, ends it, by `end`: at once before there are ranks, since an import that is interrupted may
    swallow what is raised in it. No SIG_IGN: the ranks would inherit that."""
    for number in numbers():
        signal.signal(number, lambda number, frame: None)
    signal.signal(END, lambda number, frame: end())


def ignore() -> None:
    """The run has had its last word: a signal changes nothing in what is left of this process."""
    for number in numbers():
        signal.signal(number, signal.SIG_IGN)


def linger() -> None:
    """In a process that works for a run's own: what asks a run to end may reach all of its processes (Ctrl-C in a terminal, a
    scheduler), and must not take this one from a step that is being ended. SIGTERM, by which a parent ends it, does so later.
    """

    def later(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LINGER)

    for number in numbers():
        signal.signal(number, later if number == signal.SIGTERM else signal.SIG_IGN)


def earlier() -> str | None:
    """The name of a signal that a StopRequest of this process had before there was a Runtime: what it raised may have been
    swallowed by the import that it interrupted."""
    owners = (getattr(signal.getsignal(number), "__self__", None) for number in numbers())
    return next((one.name for one in owners if isinstance(one, StopRequest) and one.at_once and one.name), None)


class Ears:
    """Hears of signals while the main thread is in a call of C, where Python runs no handler: the interpreter's own handler,
    in C, writes their numbers into a socket, which another thread reads. Opened by the main thread."""

    def __init__(self) -> None:
        import socket  # 3 ms, and only a Runtime's process needs it

        self._inner, self._outer = socket.socketpair()
        for end in (self._inner, self._outer):
            end.setblocking(False)
        before = signal.set_wakeup_fd(self._outer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop of the script's goes first
            signal.set_wakeup_fd(before)
            self._shut()
        elif hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.close)  # a loader's worker has signals of its own

    def heard(self) -> set[int]:
        """The numbers of the signals that have come since this was asked last."""
        try:
            return set(self._inner.recv(1 << 12))
        except OSError:  # none; or it is closed
            return set()

    def close(self) -> None:
        """Called by the main thread; a second time it does nothing."""
        if self._inner.fileno() >= 0:
            now = signal.set_wakeup_fd(-1)
            if now not in (-1, self._outer.fileno()):  # an event loop of the script's came later
                signal.set_wakeup_fd(now)
            self._shut()

    def _shut(self) -> None:
        self._inner.close()
        self._outer.close()


class StopRequest:
    """Remembers the first of the signals; a second one ends the process at once, with the children it has.

    Installed by the main thread only; elsewhere (a notebook's worker thread) it stays silent.

    Attributes:
        name: of the first signal that the main thread has taken; None before.
        at_once: whether there is nothing to lose yet: the first one ends the script right where it is.
        too_late: whether the script has ended: the first one changes nothing.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.name: str | None = None
        self.at_once = at_once
        self.too_late = False
        self._before: dict[int, Any] = {}
        self._pid = 0
        self._at = 0.0
        self._number: int | None = None  # of the first, until it is passed on
        self._had_launchers = False
        self._ears: Ears | None = None
        self._stays = False
        self._heard: str | None = None
        self._heard_at = 0.0

    def __bool__(self) -> bool:
        return self.name is not None

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._pid, name = os.getpid(), earlier()
        for number in numbers():
            self._before[number] = signal.signal(number, self._on_signal)
        if name is not None:
            self._first(signal.Signals[name])

    def meant(self, error: BaseException | None) -> BaseException | None:
        """`error`, or Preempted where it came of the first signal, at which an import or a library may fail in any way."""
        if isinstance(error, Exception) and self.at_once and self.name is not None:
            return Preempted(signal=self.name)
        return error

    def listen(self) -> None:
        """From here on `asked` knows of a signal in any case. Called by the main thread, after install()."""
        if self._before and threading.current_thread() is threading.main_thread():
            self._ears = Ears()

    def asked(self) -> str | None:
        """The name of the first signal, also while the main thread cannot take it. Called by one other thread, again and again:
        where the main thread has not come back meanwhile, a second signal ends the process here."""
        ears = self._ears
        for number in ears.heard() if ears is not None else ():
            if signal.getsignal(number) != self._on_signal or self.too_late:
                continue  # the script's own by now
            now = monotonic()
            if self._heard is None:
                self._heard, self._heard_at = signal.Signals(number).name, now
            elif self.name is None and now - self._heard_at >= SECOND and not self._is_launchers():
                _write(f"\nhwal: {signal.Signals(number).name} again: ends at once\n")
                _end_children()
                os._exit(EXIT_FAILED)
        return self.name or self._heard

    @contextmanager
    def stays(self) -> Iterator[None]:
        """Within, uninstall() has signals come too late, and only the end of it puts the handlers back."""
        self._stays = True
        try:
            yield
        finally:
            self._stays = False
            self.uninstall()

    def uninstall(self) -> None:
        if self._stays:
            self.too_late = True
            return
        if self._ears is not None:
            self._ears.close()
            self._ears = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def pass_on(self) -> None:
        """After uninstall(), where the run came to its end without heeding the first signal; it came while the last checkpoint
        was written, say. Whoever had the signals before has it now, once, since the script may go on for long."""
        number, self._number = self._number, None
        if number is not None:
            signal.raise_signal(number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a child of the script's inherits the handler, and has nothing to save
            signal.signal(number, self._before.get(number))
            os.kill(os.getpid(), number)
        elif self.name is None:
            self._first(number)
        elif monotonic() - self._at >= ECHO and not self._is_launchers():
            _end_children()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _is_launchers(self) -> bool:
        """Whether this is the one that the launcher passes on. A scheduler signals all processes of a job at once, and the
        launcher of a busy machine passes its own on much later."""
        if self._had_launchers or not (state_dir := os.environ.get(STATE_DIR)):
            return False
        self._had_launchers = passed_on(state_dir, self._pid).exists()
        return self._had_launchers

    def _first(self, number: int) -> None:
        self._at = monotonic()
        self.name = signal.Signals(number).name
        self._is_launchers()  # the one that it passes on is this
        if self.at_once and not self.too_late:
            raise Preempted(signal=self.name)
        if not self.too_late:
            self._number = number
            _write(f"\nhwal: {self.name}: saving after this step; once more ends at once\n")


def _write(text: str) -> None:
    """Not print: the signal may have come in the midst of one. Where the terminal is gone, what is printed from here on goes
    nowhere: it must not fail the script before that has saved."""
    try:
        os.write(2, text.encode())
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(nowhere, stream)


def _end_children() -> None:
    """Loaders' workers and other processes of multiprocessing's: they would notice by themselves, seconds later."""
    process = sys.modules.get("multiprocessing.process")
    for child in process.active_children() if process is not None else ():
        child.kill()
