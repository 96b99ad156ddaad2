"""`hwal selftest`: the runtime conformance suite on the user's own hardware, and a report of it to attach to a bug report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from hwal import __version__
from hwal.choose import choose
from hwal.cli import show, tell
from hwal.cli.devices import table
from hwal.cli.parser import Exit, Parser
from hwal.env import DEVICE
from hwal.errors import EXIT_FAILED, EXIT_OK, HwalError, OutputError, UsageError, VersionError
from hwal.host import Host
from hwal.record import Record, parse_json
from hwal.survey import survey
from hwal.values import AUTO, Machine, Target

SUITES: Mapping[str, str] = {"torch": "hwal_torch.testing"}  # framework -> the module that holds its suite
SUITE_CLASSES = "RuntimeSuite"
VERSIONS = ("torch", "torch_xla", "tensorflow", "keras", "transformers", "safetensors", "numpy")
PYTEST_INI = (
    f"[pytest]\npython_files = *.py\npython_classes = {SUITE_CLASSES}\nmarkers =\n    slow: starts training processes\n"
)
FAILED = (0, 1)  # pytest's exit codes when the tests ran: all passed, some failed
STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
GRACE = 10.0  # seconds that a test which is stopped has to end what it started

EPILOG = """\
On two CPU cores that others use too it took a quarter of an hour; each test is a dot. Stopped, by
Ctrl-C or SIGTERM, it reports what was tested until then.

exit codes: 0 every promise that applies is kept, 1 one is broken or it was stopped, 2 a wrong flag or no such device

examples:
  hwal selftest                         the device that auto takes
  hwal selftest --device cpu --out cpu-report

Look through the folder before you publish it: it says which hardware and which versions you have.
"""


@dataclass(frozen=True)
class Promise(Record):
    """One test of the suite. `outcome` is pass, fail, not applicable or not tested; `reason` says why it is not a pass."""

    name: str
    promise: str
    outcome: str
    seconds: float
    reason: str | None = None


@dataclass(frozen=True)
class Report(Record):
    """What became of every promise on one machine. `stopped`: by which signal, before all were tested."""

    device: Target
    framework: str
    machine: Machine
    versions: Mapping[str, str | None]
    promises: tuple[Promise, ...] = field(default=())
    stopped: str | None = None

    def count(self, outcome: str) -> int:
        return sum(promise.outcome == outcome for promise in self.promises)

    def summary(self) -> str:
        kept, broken, rest = (self.count(outcome) for outcome in ("pass", "fail", "not applicable"))
        said = f"{self.device}: {kept} promises kept, {broken} broken, {rest} not applicable"
        return f"{said}; stopped by {self.stopped}: {self.count('not tested')} not tested" if self.stopped else said


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        "selftest",
        "Proves hwal's promises on your own hardware; writes report.md, report.json and host.json.",
        "[flags]",
        EPILOG,
    )
    parser.add_argument("--device", metavar="D", help="as for hwal train (default: HWAL_DEVICE, else auto)")
    parser.add_argument(
        "--framework", metavar="F", choices=tuple(SUITES), default="torch", help=f"{' or '.join(SUITES)} (default torch)"
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the report (default: selftest-BACKEND)")
    try:
        given = parser.parse_args(list(argv))
    except Exit:
        return EXIT_OK
    found = survey(None, given.device or os.environ.get(DEVICE) or AUTO)
    choice = choose(found.target, found.probes, found.backends, framework=given.framework)
    backend = found.backends[choice.backend]
    host = Host()
    if host.version(given.framework) is None:
        raise VersionError(
            f"{given.framework} is not installed",
            why=f"--framework {given.framework}",
            hint=f"pip install 'hwal[{backend.extra}]'",
        )
    if host.version("pytest") is None:
        raise VersionError("pytest is not installed", why="it runs the suite", hint="pip install 'hwal[selftest]'")
    folder = _folder(given.out or f"selftest-{choice.backend}")
    _record(host, folder)
    target = Target(choice.backend, found.target.spec)
    tell(f"hwal: {choice}")
    machine = Machine(replace(found.host, name=None), found.probes, choice)
    versions = {"hwal": __version__, "python": sys.version.split()[0], **{name: host.version(name) for name in VERSIONS}}
    promises, stopped = run_suite(given.framework, target, folder)
    report = Report(target, given.framework, machine, versions, promises, stopped)
    _write(folder / "report.json", report.to_json(indent=1) + "\n")
    _write(folder / "report.md", as_markdown(report))
    show(f"{report.summary()}\nreport: {folder / 'report.md'}")
    return EXIT_FAILED if report.count("fail") or stopped else EXIT_OK


def suite_command(framework: str, ini: Path, results: Path) -> list[str]:
    """pytest as a program, untouched by configuration that lies where the user stands."""
    return [
        *(sys.executable, "-m", "pytest", "--pyargs", SUITES[framework]),
        *("-c", str(ini), "--rootdir", str(ini.parent), "--noconftest", "-p", "no:cacheprovider", "-q", "--tb=short"),
        *("-p", "hwal.cli.selftest_plugin", f"--hwal-results={results}"),
    ]


def run_suite(framework: str, target: Target, folder: Path) -> tuple[tuple[Promise, ...], str | None]:
    """Runs the suite on `target`; pytest's own output goes to stderr. What became of each test, and the signal that stopped
    it. Raises HwalError when it could not run at all."""
    ini, results = folder / "pytest.ini", folder / "results.json"
    results.unlink(missing_ok=True)
    _write(ini, PYTEST_INI)
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {DEVICE: str(target), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = suite_command(framework, ini, results)
    try:
        code, stopped = _run(command, env)
        if (stopped is None and code not in FAILED) or not results.exists():
            if stopped is not None:
                raise HwalError(f"stopped by {stopped} before the first test", where="hwal selftest")
            raise HwalError(
                f"the suite could not run: pytest ended with exit code {code}",
                where=" ".join(command),
                why="what it printed stands above",
            )
        rows = parse_json(results.read_text(encoding="utf-8"), str(results))
    finally:
        ini.unlink(missing_ok=True)
        results.unlink(missing_ok=True)
    return tuple(Promise.from_dict(row, f"{results}[{i}]") for i, row in enumerate(rows)), stopped


class Stopped(BaseException):
    """A signal has come, whose name it has."""


@contextmanager
def _stoppable() -> Iterator[None]:
    """Signals that would end this process raise Stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {each: signal.signal(each, stop) for each in STOPS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _run(command: Sequence[str], env: Mapping[str, str]) -> tuple[int, str | None]:
    """pytest's exit code, and the signal that stopped it: it is interrupted then, and after GRACE, or a second signal, whatever
    is left of it and of what its test has started is killed."""
    session = sys.platform != "win32"  # a process group of its own: a terminal's Ctrl-C comes here alone
    with subprocess.Popen(command, env=env, stdout=sys.stderr.fileno(), start_new_session=session) as child, _stoppable():
        try:
            return child.wait(), None
        except Stopped as stop:
            name = str(stop)
        tell(f"hwal: {name}: ends the test that is running, and reports")
        _end(child, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, Stopped):
            child.wait(GRACE)
        if session:
            _end(child, signal.SIGKILL)
        return child.wait(), name


def _end(child: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            child.terminate()
        else:
            os.killpg(child.pid, number)


def as_markdown(report: Report) -> str:
    """The report for people: the machine, the versions, a table of promises, and what broke."""
    marks = {"pass": "pass", "fail": "**fail**"}
    rows = [
        f"| {row.promise} | {marks.get(row.outcome, row.outcome)} | {_first_line(row.reason)} | {row.seconds:.1f} |"
        for row in report.promises
    ]
    broken = [
        part for promise in report.promises if promise.outcome == "fail" for part in (f"### {promise.name}", _fence(promise))
    ]
    lines = [
        f"# hwal selftest: {report.device}, {report.framework}",
        report.summary() + ".",
        "## Machine",
        "```\n" + "\n".join(table(report.machine, None, 100)) + "\n```",
        "## Versions",
        "\n".join(f"- {name} {version}" for name, version in report.versions.items() if version is not None),
        "## Promises",
        "\n".join(["| promise | outcome | reason | seconds |", "|---|---|---|---|", *rows]),
        *(["## What broke", *broken] if broken else []),
    ]
    return "\n\n".join(lines) + "\n"


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0].replace("|", "\\|")


def _fence(promise: Promise) -> str:
    return f"```\n{promise.reason}\n```"


def _folder(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}", where="--out", hint="choose another --out") from None
    return folder


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}", where="--out", hint="choose another --out") from None


def _record(host: Host, folder: Path) -> None:
    """Writes host.json. A machine that cannot be recorded is told, and tested all the same."""
    from hwal.backend import Backend
    from hwal.registry import Registry
    from hwal.testing.hosts import record

    backends = [backend for backend in Registry(host).backends() if isinstance(backend, Backend)]
    try:
        record(host, backends, folder)
    except HwalError as error:
        tell(f"hwal: note: the machine was not recorded: {error.what}")
