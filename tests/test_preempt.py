"""StopRequest: the first signal is remembered, the second ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hwal.env import PLAN, STATE_DIR
from hwal.errors import Preempted
from hwal.preempt import ECHO, NAMES, StopRequest, earlier, go_on, nothing_to_save, passed_on

SLEEPER = """
    import signal, sys, time
    from hwal.preempt import StopRequest

    stop = StopRequest()
    stop.install()
    print("ready", flush=True)
    while not stop:
        time.sleep(0.005)
    print(stop.name, flush=True)
    time.sleep(60)
"""


Sleeper = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts a process that waits for its first signal and prints its name; ended with the test."""
    with ExitStack() as stack:

        def start(**env: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", textwrap.dedent(SLEEPER)]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], env={**os.environ, **env}
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def signalled(process: subprocess.Popen[str], name: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[name])
    assert process.stdout.readline() == f"{name}\n"


@pytest.mark.parametrize("first", NAMES)
def test_the_first_signal_is_remembered_and_the_second_ends_the_process(sleeper: Sleeper, first: str) -> None:
    started = {second: sleeper() for second in NAMES}
    for second, process in started.items():
        signalled(process, first)
        process.send_signal(signal.Signals[second])  # an echo of the first, as wrappers make it
    time.sleep(ECHO + 0.1)
    for second, process in started.items():
        assert process.poll() is None
        process.send_signal(signal.Signals[second])
        assert process.wait(10) == -signal.Signals[second]


def test_what_a_launcher_passes_on_late_is_no_second_signal(sleeper: Sleeper, tmp_path: Path) -> None:
    process = sleeper(**{STATE_DIR: str(tmp_path)})
    signalled(process, "SIGUSR1")
    time.sleep(ECHO + 0.1)
    passed_on(tmp_path, process.pid).touch()
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    assert process.wait(10) == -signal.SIGUSR1


def test_a_request_that_a_library_swallowed_or_made_an_error_of_stands() -> None:
    before, runtime = StopRequest(at_once=True), StopRequest(at_once=True)
    before.install()
    try:
        assert earlier() is None
        with suppress(Preempted):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert earlier() == "SIGUSR1"
        meant = before.meant(ImportError("planted"))
        assert isinstance(meant, Preempted) and meant.signal == "SIGUSR1"
        left = SystemExit(3)
        assert before.meant(left) is left and before.meant(None) is None
        with pytest.raises(Preempted) as caught:
            runtime.install()
        assert caught.value.signal == "SIGUSR1"
        runtime.at_once = False
        assert runtime.meant(failed := ValueError()) is failed
    finally:
        runtime.uninstall()
        before.uninstall()


def test_nothing_asked_until_a_signal_comes() -> None:
    stop = StopRequest()
    assert not stop and stop.name is None
    stop.install()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop and stop.name == "SIGUSR1"
    finally:
        stop.uninstall()


def test_uninstall_puts_the_handlers_back() -> None:
    numbers = [signal.Signals[name] for name in NAMES]
    before = [signal.getsignal(number) for number in numbers]
    stop = StopRequest()
    stop.install()
    assert all(signal.getsignal(number) == stop._on_signal for number in numbers)
    stop.uninstall()
    stop.uninstall()
    assert [signal.getsignal(number) for number in numbers] == before


def test_off_the_main_thread_it_stays_silent() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            stop = StopRequest()
            stop.install()
            stop.uninstall()
        except BaseException as error:
            failed.append(error)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_child_that_the_script_forked_ends_at_the_first() -> None:
    """It inherits the handler; one that only remembered would make Process.terminate() wait for ever."""
    code = """
        import multiprocessing, sys, time
        from hwal.preempt import StopRequest

        stop = StopRequest()
        stop.install()
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()  # Python drops a signal that comes while it forks
        child = fork.Process(target=lambda: (ready.set(), time.sleep(60)))
        child.start()
        ready.wait()
        child.terminate()
        child.join(10)
        print(child.exitcode, stop.name)
        child.kill()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert done.stdout == f"{-signal.SIGTERM} None\n", done.stderr


LISTENER = """
    import ctypes, os, signal, sys, threading, time
    from hwal.preempt import StopRequest

    stop = StopRequest()
    stop.install()
    stop.listen()
    main = threading.get_ident()
    lines = open("/proc/self/cmdline").read().split("\\0")[2].splitlines()
    last = max(number for number, line in enumerate(lines, 1) if line)

    def listen():
        asleep = 0  # in the last line
        while asleep < 5:
            time.sleep(0.01)
            state = open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]
            asleep = asleep + 1 if (sys._current_frames()[main].f_lineno, state) == (last, "S") else 0
        os.write(1, b"ready\\n")
        while not stop.asked():
            time.sleep(0.005)
        os.write(1, f"{stop.asked()} {stop.name}\\n".encode())
        while True:
            stop.asked()
            time.sleep(0.005)

    threading.Thread(target=listen, daemon=True).start()
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of zeros")
def test_a_signal_is_heard_while_the_main_thread_is_in_c_and_a_second_one_ends_the_process() -> None:
    command = [sys.executable, "-c", textwrap.dedent(LISTENER)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1 None\n"
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        assert process.wait() == 1
        assert "SIGTERM again: ends at once" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_what_listens_leaves_no_trace_and_lets_an_event_loop_go_first() -> None:
    for before in (-1, os.open(os.devnull, os.O_WRONLY)):
        os.set_blocking(before, False) if before != -1 else None
        assert signal.set_wakeup_fd(before) == -1
        stop = StopRequest()
        stop.install()
        stop.listen()
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.asked() == stop.name == "SIGUSR1"
        finally:
            stop.uninstall()
            assert signal.set_wakeup_fd(-1) == before
    os.close(before)


def test_an_event_loop_that_came_later_goes_on_hearing() -> None:
    later = os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(later, False)
    stop = StopRequest()
    stop.install()
    stop.listen()
    signal.set_wakeup_fd(later)
    stop.uninstall()
    assert signal.set_wakeup_fd(-1) == later
    os.close(later)


def test_a_signal_to_a_forked_child_is_not_the_parents() -> None:
    """A loader's worker has the socket from the rank that it belongs to."""
    code = """
        import multiprocessing, os, signal, time
        from hwal.preempt import StopRequest

        stop = StopRequest()
        stop.install()
        stop.listen()
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()

        def child():
            signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(3))
            ready.set()
            time.sleep(60)

        process = fork.Process(target=child)
        process.start()
        ready.wait()
        os.kill(process.pid, signal.SIGUSR1)
        process.join()
        print(process.exitcode, stop.asked())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=60)
    assert done.stdout == "3 None\n", done.stderr


def test_a_signal_that_comes_too_late_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where the first one would have ended the script at once."""
    stop = StopRequest(at_once=True)
    before = signal.getsignal(signal.SIGUSR1)
    stop.install()
    with stop.stays():
        stop.uninstall()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert capfd.readouterr().err == ""
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_signal_that_a_run_did_not_heed_is_passed_on_once() -> None:
    """To whoever had it before; not one that came too late."""
    had: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: had.append(number))
    try:
        for late in (False, True):
            stop = StopRequest()
            stop.install()
            with stop.stays():
                if late:
                    stop.uninstall()
                os.kill(os.getpid(), signal.SIGUSR1)
                assert stop.name == "SIGUSR1" and had == [signal.SIGUSR1] * late
                stop.uninstall()
            stop.pass_on()
            stop.pass_on()
            assert had == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


REQUEUED = "says so where the job was requeued"
ON = [
    ("{}", "", "go on with --resume a"),
    ("", "", "go on with HWAL_RESUME=a"),
    ("{}", "7", f"go on with --resume a; in a job script ${{SLURM_RESTART_COUNT:+--resume a}} {REQUEUED}"),
    ("", "7", f"go on with HWAL_RESUME=a; in a job script HWAL_RESUME=${{SLURM_RESTART_COUNT:+a}} {REQUEUED}"),
]


@pytest.mark.parametrize(("plan", "job", "told"), ON)
def test_what_to_go_on_with(monkeypatch: pytest.MonkeyPatch, plan: str, job: str, told: str) -> None:
    """A flag of `hwal train` where that started the run, else its variable."""
    monkeypatch.setenv(PLAN, plan)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    assert go_on("a") == told
    assert nothing_to_save("SIGTERM", "now", "a", trained=True) == (75, f"SIGTERM now: {told}")


def test_nothing_is_lost_only_where_nothing_was_trained() -> None:
    none = "and there is no checkpoint to go on from"
    assert nothing_to_save("SIGTERM", "now", None) == (1, f"SIGTERM now: nothing is lost, {none}")
    lost = "what was trained is lost, unless the script has saved it"
    assert nothing_to_save("SIGTERM", "now", None, trained=True) == (1, f"SIGTERM now: {lost}, {none}")
