"""torch.distributed.run as a program of hwal's: the same flags, but who failed goes into a file and not onto the screen.

    python -m hwal_torch.torchrun <torchrun's flags> -m hwal.worker SCRIPT …

It reads HWAL_STATE_DIR, leaves its pid there and, when ranks fail, failure.json (hwal.launch.outcome.Failure).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwal.env import STATE_DIR
from hwal.launch.lifeline import AGENT, LAUNCHER, end_with_parent, leave_pid
from hwal.launch.outcome import FAILURE, Exit, Failure

GRACE = 3  # seconds that ranks have between torchrun's SIGTERM and its SIGKILL, once one has failed


def main(argv: Sequence[str]) -> int:
    state_dir = Path(os.environ[STATE_DIR])
    end_with_parent(state_dir, LAUNCHER)
    leave_pid(state_dir, AGENT)
    failure = _launch(argv, state_dir)
    if failure is None:
        return 0
    aside = state_dir / (FAILURE + ".tmp")
    aside.write_text(failure.to_json(), encoding="utf-8")
    aside.replace(state_dir / FAILURE)
    return 2 if failure.usage else 1


def _launch(argv: Sequence[str], state_dir: Path) -> Failure | None:
    """None when every rank ended with exit code 0."""
    try:
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    except ImportError as error:
        return Failure(agent=f"torch cannot be imported: {error}\n  try:   pip install 'hwal[torch]'", usage=True)
    logging.disable(logging.ERROR)  # in this process only: what it would say, hwal says in a few lines
    try:
        args = run.parse_args(list(argv))
    except SystemExit as end:  # argparse has printed what is wrong
        return Failure(agent="torchrun does not understand --engine-args (see above)", usage=True) if end.code else None
    args.log_dir = args.log_dir or str(state_dir / "torchrun")
    if getattr(args, "shutdown_timeout", 0) == run.get_args_parser().get_default(
        "shutdown_timeout"
    ):  # torch 2.13 has it, 2.8 not
        args.shutdown_timeout = GRACE
    try:
        run.run(args)
    except ChildFailedError as error:
        return Failure(tuple(_exit(rank, failure) for rank, failure in sorted(error.failures.items())))
    except Exception as error:
        return Failure(agent=_explain(error, args))
    return None


def _exit(rank: int, failure: Any) -> Exit:
    return Exit(rank, failure.pid, failure.exitcode, float(failure.timestamp))


def _explain(error: Exception, args: Any) -> str:
    """Why no rank could be started, or the ranks could not meet."""
    text = f"{type(error).__name__}: {error}"
    endpoint = args.rdzv_endpoint or f"{args.master_addr}:{args.master_port}"
    lower = text.lower()
    if "eaddrinuse" in lower or "address already in use" in lower:
        what, hint = (
            f"the port of {endpoint} is in use by another program",
            "another port in --engine-args, or none: hwal finds a free one",
        )
    elif "rendezvous" in lower or "timed out" in lower or "timeout" in lower:
        what, hint = (
            f"the machines did not meet at {endpoint}",
            "start hwal on every machine, with an endpoint that all of them reach",
        )
    else:
        what, hint = "torchrun could not start the ranks", "hwal train --dry-run shows what was started"
    return f"{what}\n  where: --engine torchrun\n  why:   {text.splitlines()[0]}\n  try:   {hint}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
