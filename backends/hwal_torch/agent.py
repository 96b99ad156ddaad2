"""torchrun's agent as hwal has it: it says why a world is started again, and gives each start of it a number of its own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from hwal.cgroup import Kills, kills
from hwal.display import tell
from hwal.env import ROUND, STATE_DIR
from hwal.host import Host
from hwal.launch.outcome import Exit, describe, first_failure, read_ended, read_outcomes
from hwal.preempt import END, blocked, leave_to_launcher
from hwal.shortage import killed

RESTARTS = "restarts"  # in the state folder: a line about each failure after which the world was started again


def end() -> None:
    """What the agent ends by when its launcher says so. At any other exception torch closes the gathering for all machines."""
    raise SignalException("the launcher ends this machine's part", signal.Signals(END))


class Agent(LocalElasticAgent):
    """Starts, watches and restarts the ranks of one machine."""

    _last: RunResult | None = None
    _round: int | None = None
    _kills: Kills | None = None  # the kernel's counters when the ranks started

    @cached_property
    def _state_dir(self) -> Path:
        return Path(os.environ[STATE_DIR])

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        for path in self._state_dir.glob("rank-*.json"):  # of a world before, whose ranks may have had other numbers
            path.unlink()
        handler: Any = worker_group.spec.rdzv_handler
        if hasattr(handler, "_bootstrap_store_info"):
            # torch keeps where rank 0 was at first, and looks for it there when another machine has that rank.
            handler._bootstrap_store_info = None
        super()._rendezvous(worker_group)
        self._round = self._current_round()
        os.environ[ROUND] = str(self._round)

    def _current_round(self) -> int:
        """torchrun's own number of this gathering, the same on every machine; with fixed machines only failures count."""
        holder = getattr(self._worker_group.spec.rdzv_handler, "_state_holder", None)
        if holder is not None:
            return int(holder.state.round)
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._kills = kills(Host())
        with blocked():  # a rank takes them when it has left its pid
            workers: dict[int, Any] = super()._start_workers(worker_group)
            leave_to_launcher(end)  # torch has taken some of them
        return workers

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._last = result = super()._monitor_workers(worker_group)
        again = None
        if result.state == WorkerState.SUCCEEDED and self._stopped_for_another():
            again = "the ranks of other machines stopped for one that joins"
        elif result.state == WorkerState.HEALTHY and self._current_round() != self._round:
            # They train without it by now, in the same folder: this world must not save once more.
            again = "the other machines have not heard of this one, and went on without it"
            self._end_ranks()
        if again is None:
            return result
        self._start_again(f"hwal: {again}", worker_group)
        return RunResult(state=WorkerState.HEALTHY)

    def _end_ranks(self) -> None:
        """torch still lists those that have ended, whose numbers may belong to others by now."""
        context: Any = self._pcontext
        for handler in context.subprocess_handlers.values() if context is not None else ():
            if handler.proc.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(handler.proc.pid, signal.SIGKILL)

    def _stopped_for_another(self) -> bool:
        left = read_outcomes(self._state_dir).values()
        if not left or not all(outcome.preempted for outcome in left):
            return False
        waiting = self._worker_group.spec.rdzv_handler.num_nodes_waiting()
        return waiting > 0 or self._current_round() != self._round

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self._last is not None and self._last.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            most = worker_group.spec.max_restarts
            why = self._why(self._last, worker_group.workers[0].world_size)
            with suppress(OSError), (self._state_dir / RESTARTS).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{why}\n")
            self._start_again(why, worker_group, f"restart {most - self._remaining_restarts} of {most}")
        else:
            self._start_again("hwal: another machine is there", worker_group)

    def _start_again(self, why: str, worker_group: WorkerGroup, count: str = "this is no restart that counts") -> None:
        tell(f"{why}; torchrun starts the world again ({count})")
        super()._restart_workers(worker_group)

    def _why(self, result: RunResult, size: int) -> str:
        exits = [exit_of(rank, failure) for rank, failure in sorted(result.failures.items())]
        verdict = first_failure(exits, read_outcomes(self._state_dir), read_ended(self._state_dir))
        if verdict is None:
            return "hwal: a rank failed"
        return describe(verdict, size, None, killed(self._kills, Host()) if self._kills is not None else None)[0]


def restarts(state_dir: Path) -> tuple[str, ...]:
    """What the agent left about the failures before the last."""
    path = state_dir / RESTARTS
    return tuple(path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()


def exit_of(rank: int, failure: Any) -> Exit:
    """How a rank ended, from torch's own record."""
    return Exit(rank, failure.pid, failure.exitcode, float(failure.timestamp))
