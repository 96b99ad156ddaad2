"""torch.distributed.run as a program of hwal's: the same flags, but who failed goes into a file and not onto the screen.

    python -m hwal_torch.torchrun <torchrun's flags> -m hwal.worker SCRIPT …

It reads HWAL_STATE_DIR, leaves its pid there and, when ranks fail, failure.json (hwal.launch.outcome.Failure).
"""

from __future__ import annotations

import errno
import io
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

from hwal.display import tell
from hwal.env import STATE_DIR
from hwal.errors import EXIT_FAILED
from hwal.launch.lifeline import AGENT, LAUNCHER, end_with_parent, leave_pid
from hwal.launch.outcome import Failure
from hwal.preempt import leave_to_launcher


def main(argv: Sequence[str]) -> int:
    state_dir = Path(os.environ[STATE_DIR])
    leave_to_launcher()
    end_with_parent(state_dir, LAUNCHER)
    try:
        leave_pid(state_dir, AGENT)
    except OSError as error:
        tell(f"hwal: error: cannot write {error.filename}: {error.strerror}\n  try:   free space, or another TMPDIR")
        return 1
    failure = _launch(argv, state_dir)
    if failure is None:
        return 0
    with suppress(OSError):  # what the ranks have left says most of it
        failure.write(state_dir)
    return 2 if failure.usage else 1


def _launch(argv: Sequence[str], state_dir: Path) -> Failure | None:
    """None when every rank ended with exit code 0."""
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher import api

        from hwal_torch.agent import Agent, end, exit_of, restarts
    except ImportError as error:
        return Failure(agent=f"torch cannot be imported: {error}\n  try:   pip install 'hwal[torch]'", usage=True)
    leave_to_launcher(end)
    logging.disable(logging.ERROR)  # in this process only: what it would say, hwal says in a few lines
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            args = run.parse_args(list(argv))
    except SystemExit as refused:  # argparse prints its whole usage and, in the last line, what is wrong
        if not refused.code:
            return None
        why = said.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        hint = "hwal train --engine torchrun --engine-args=--help … lists them"
        return Failure(agent=f"torchrun refuses --engine-args: {why}\n  where: --engine-args\n  try:   {hint}", usage=True)
    if _is_taken(args):
        return Failure(agent=_port_taken(args.rdzv_endpoint, "on one machine this run would have to serve it"))
    api.LocalElasticAgent = Agent  # type: ignore[attr-defined]
    args.log_dir = args.log_dir or str(state_dir / "torchrun")
    try:
        run.run(args)
    except ChildFailedError as error:
        exits = tuple(exit_of(rank, failure) for rank, failure in sorted(error.failures.items()))
        return Failure(exits, restarts(state_dir))
    except SignalException:
        sys.exit(EXIT_FAILED)
    except Exception as error:
        return Failure(agent=_explain(error, args))
    return None


def _is_taken(args: Any) -> bool:
    """Whether a single machine's rendezvous port belongs to another program: torch would ask that one for minutes."""
    _, _, port = args.rdzv_endpoint.rpartition(":")
    if args.nnodes not in ("1", "1:1") or args.rdzv_backend != "c10d" or not port.isdigit() or port == "0":
        return False
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left is free
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _port_taken(endpoint: str, why: str) -> str:
    hint = "another port in --engine-args, or none: hwal finds a free one"
    return f"the port of {endpoint} is in use by another program\n  where: --engine torchrun\n  why:   {why}\n  try:   {hint}"


def _explain(error: Exception, args: Any) -> str:
    """Why no rank could be started, or the ranks could not meet."""
    text = f"{type(error).__name__}: {error}"
    endpoint = args.rdzv_endpoint or f"{args.master_addr}:{args.master_port}"
    lower = text.lower()
    first = text.splitlines()[0]
    if "eaddrinuse" in lower or "address already in use" in lower:
        return _port_taken(endpoint, first)
    if "rendezvous" in lower or "timed out" in lower or "timeout" in lower:
        what, hint = f"the machines did not meet at {endpoint}", "start hwal on every machine, with an endpoint that all reach"
    else:
        what, hint = "torchrun could not start the ranks", "hwal train --dry-run shows what was started"
    return f"{what}\n  where: --engine torchrun\n  why:   {first}\n  try:   {hint}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
