"""direct: this process becomes the worker. One process, or this rank of a world that another launcher started.

Where the micro-batch is searched for it stays, as the parent of one worker after another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hwal.errors import HwalError
from hwal.launch.attempts import searches
from hwal.launch.world import read_world
from hwal.preempt import blocked
from hwal.values import Launch


def run(launch: Launch, environ: Mapping[str, str]) -> int:
    """Does not return, except on Windows, where exec would leave the shell waiting for nobody."""
    (command,) = launch.commands
    if read_world({**environ, **command.env}).launcher == "none" and searches(command, environ):
        from hwal.launch import parent  # 11 ms of subprocess, and only this needs it

        return parent.run(launch, environ)
    env = {**environ, **command.env}
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":
        import subprocess

        return subprocess.run(command.argv, env=env, check=False).returncode
    try:
        with blocked():  # the worker takes them when it can
            os.execve(command.argv[0], list(command.argv), env)
    except OSError as error:
        raise HwalError(f"cannot start {command.argv[0]}: {error.strerror}", where="--engine direct") from None
