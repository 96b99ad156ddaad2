"""`hwal` itself: help, version, and how a command ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hwal import __version__
from hwal.cli import COMMANDS
from tests.cli.paper import Result

Hwal = Callable[..., Result]


def test_help_and_version(hwal: Hwal) -> None:
    result = hwal("--help")
    assert (result.code, result.err) == (0, "")
    assert all(name in result.out and about in result.out for name, about in COMMANDS.items())
    assert max(map(len, result.out.splitlines())) <= 90
    assert hwal("--version").out == f"hwal {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(hwal: Hwal, command: str) -> None:
    result = hwal(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: hwal {command}")
    assert "exit codes:" in result.out and "examples:" in result.out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [40, 80])
def test_help_fits_the_terminal(hwal: Hwal, monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = [line for line in hwal(command, "--help").out.splitlines() if len(line) > width]
    assert all(len(line.split()) == 1 or line.startswith("usage:") for line in long), long


def test_an_interrupt_is_one_line(hwal: Hwal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("hwal.cli.devices.main", interrupted)
    assert hwal("devices") == Result(1, "", "hwal: interrupted\n")


def test_a_reader_that_has_had_enough(folder: Path) -> None:
    """The answer goes into a pipe that is closed already: no traceback, no complaint."""
    process = subprocess.Popen([sys.executable, "-m", "hwal", "devices"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (0, b"")
    process.stderr.close()


LOADED = """
import sys
from hwal.cli import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""
HEAVY = {"torch", "tensorflow", "keras", "jax", "numpy", "rich", "importlib.metadata", "transformers"}


@pytest.mark.parametrize("argv", [["--help"], ["devices"], ["train", "--dry-run", "s.py"]])
def test_no_command_loads_anything_heavy(folder: Path, argv: list[str]) -> None:
    (folder / "s.py").write_text("import torch")
    done = subprocess.run([sys.executable, "-c", LOADED, *argv], capture_output=True, text=True, check=True)
    loaded = done.stderr.splitlines()[-1].split()
    assert "hwal.cli" in loaded
    assert not HEAVY & set(loaded)


def test_help_loads_no_command(folder: Path) -> None:
    code = "import sys; from hwal.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"argparse", "hwal.cli.train", "hwal.cli.devices", "hwal.registry"} & set(done.stderr.split())


def test_closed_streams_go_nowhere(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m hwal devices >&- 2>&- <&-"
    roots = os.pathsep.join(str(Path(__file__).parents[2] / folder) for folder in (".", "backends"))
    environ = {**os.environ, "PYTHONPATH": roots}
    assert subprocess.run(["/bin/sh", "-c", command], env=environ, cwd=tmp_path, check=False).returncode == 0
