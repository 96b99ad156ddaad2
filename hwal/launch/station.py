"""A rank's side of the launcher's state folder: its word when it starts and ends, and where its output goes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hwal.aside import born
from hwal.env import RUN_DIR, STATE_DIR
from hwal.errors import OutputError
from hwal.launch.lifeline import AGENT, end_with_parent
from hwal.launch.outcome import Outcome
from hwal.launch.terminal import outlive_disk
from hwal.launch.world import starts_again
from hwal.values import World


class Station:
    """Opened by a worker that a launcher waits for. Rank 0 writes to the terminal; the others write run_dir/logs/rank-N.log."""

    def __init__(self, environ: Mapping[str, str], world: World, device: str) -> None:
        self.folder = Path(environ[STATE_DIR])
        end_with_parent(self.folder, AGENT)
        self.log = Path(environ.get(RUN_DIR) or self.folder) / "logs" / f"rank-{world.rank}.log"
        self.is_main = world.rank == 0
        self._prepare_log(first=not starts_again(environ))
        log = None if self.is_main else str(self.log)
        self.outcome = Outcome(world.rank, os.getpid(), device, time.time(), log=log, born=born(os.getpid()))
        try:
            self.outcome.write(self.folder)
        except OSError as error:
            raise OutputError(
                f"rank {world.rank} cannot leave word for the launcher: {error.strerror}",
                where=str(self.folder),
                hint="free space, or another TMPDIR",
            ) from None

    def _prepare_log(self, first: bool) -> None:
        """Raises OutputError."""
        try:
            self._open_log(first)
        except OSError as error:
            hint = "free space, or another --out"
            raise OutputError(f"cannot write {self.log}: {error.strerror}", where="--out", hint=hint) from None

    def _open_log(self, first: bool) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.is_main:
            if first:
                self.log.unlink(missing_ok=True)  # of an earlier run in the same folder
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if first else 0)
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = os.open(self.log, flags, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        outlive_disk()

    def leave(
        self,
        code: int,
        error: str | None,
        lines: Sequence[str],
        lost_peer: bool,
        preempted: bool,
        alone: bool = False,
        of_world: bool = False,
    ) -> None:
        """The last word. An error of rank 0 goes to its log as well: the launcher shows it, unless another failed first."""
        log = self.outcome.log
        if error is not None and self.is_main:
            with suppress(OSError), self.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                log = str(self.log)
                file.write("\n".join(lines) + "\n")
        self.outcome = replace(
            self.outcome,
            ended=time.time(),
            exit=code,
            error=error,
            lines=tuple(lines[-40:]),
            lost_peer=lost_peer,
            preempted=preempted,
            alone=alone,
            of_world=of_world,
            log=log,
        )
        for outcome in (self.outcome, replace(self.outcome, lines=tuple(lines[:1]))):  # a full disk may have room for less
            try:
                outcome.write(self.folder)
                break
            except OSError:
                continue
