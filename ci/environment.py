"""Makes the environment of a pin file, or finds it made, and prints the path of its Python.

    python3.11 ci/environment.py ci/main.txt

A venv named after the pins' hash, outside the checkout: $HWAL_ENVS, else $XDG_CACHE_HOME/hwal/envs, else
~/.cache/hwal/envs. A marker file, written last, says that it is complete; one without it is made again. Two runs at
the same time wait for each other. Standard library only: this is what a bare machine starts with.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMPLETE = "complete"


def folder_of_environments() -> Path:
    if given := os.environ.get("HWAL_ENVS"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hwal" / "envs"


def name_of(pins: Path) -> str:
    """`main-3.11-0a1b2c3d4e5f`: the pin file, the Python's version and the hash of the pins."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{pins.stem}-{version}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:12]}"


def python_of(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when its holder dies."""
    with path.open("w") as file:
        if os.name != "nt":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(environment: Path, pins: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    print(f"making {environment} from {pins}", file=sys.stderr, flush=True)
    venv.create(environment, with_pip=True, symlinks=os.name != "nt")
    command = [str(python_of(environment)), "-m", "pip", "install", "-qq", "--no-input", "-r", str(pins)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (environment / COMPLETE).write_text(pins.read_text(encoding="utf-8"), encoding="utf-8")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    pins = Path(arguments[0])
    home = folder_of_environments()
    home.mkdir(parents=True, exist_ok=True)
    environment = home / name_of(pins)
    with locked(home / f"{environment.name}.lock"):
        if not (environment / COMPLETE).exists():
            try:
                make(environment, pins)
            except subprocess.CalledProcessError as error:
                print(f"pip failed with exit code {error.returncode}", file=sys.stderr)
                return 1
    print(python_of(environment))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
