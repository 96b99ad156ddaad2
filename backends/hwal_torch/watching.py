"""The watch over a torch world (hwal.watch): how its frames look, where its ranks' sockets meet, how a rank ends."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hwal.display import tell
from hwal.env import STATE_DIR, spelled
from hwal.errors import EXIT_FAILED, HwalError, LostRankError
from hwal.launch.outcome import is_lost_peer
from hwal.launch.script import told
from hwal.launch.word import drop_beat, last_word, leave_beat, nothing_lost
from hwal.preempt import nothing_to_save, rank_code
from hwal.values import World
from hwal.watch import stacks
from hwal.watch.beat import Beat, Doom
from hwal.watch.link import Hub, Spoke
from hwal.watch.spot import Signs
from hwal.watch.watchdog import Member, Watchdog

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SIGNS = Signs(
    collectives=("torch.distributed",),
    may_wait=("_engine_run_backward",),  # DDP's all-reduces end in there, and FSDP's on devices of their own
    compilers=("torch._dynamo.convert_frame", "torch._inductor.compile_fx"),
    names={"train": "feed", "evaluate": "feed", "_micro_batches": "feed"},
)
FLUSH = 1.0  # seconds to look for checkpoints and to write metrics down: the file system may be what hangs


def meet(store: Store, world: World) -> Hub | Spoke | None:
    """This rank's end of the watch's sockets; None, told, where they cannot be had: the rank watches itself alone then."""
    assert world.address is not None, "read_world checks this"
    try:
        if world.rank == 0:
            try:
                hub = Hub(world.address)
            except OSError:
                store.set("watch", "")
                raise
            store.set("watch", f"{hub.port} {hub.key}")
            return hub
        port, _, key = store.get("watch").decode().partition(" ")
        return Spoke(world.address, int(port), key, world.rank) if port else None
    except (OSError, dist.DistError) as error:
        tell(f"hwal: note: rank {world.rank} stands apart from the watch over hangs: {error}")
        return None


def watch(rt: SharedTorchRuntime, store: Store | None) -> Watchdog:
    """A watchdog over this rank, at work."""
    progress = rt.progress
    rt.stop_request.listen()
    timeout = rt.job.settings.hang_timeout
    signs = replace(SIGNS, compilers=(*SIGNS.compilers, *rt.compilers))
    dog = Watchdog(Member(rt.rank, rt.world_size), rt.pulse, lambda: progress.step, timeout, signs, TorchOwner(rt))
    dog.start(None if store is None else meet(store, rt.job.world))
    return dog


def explain(rt: SharedTorchRuntime, error: BaseException | None) -> LostRankError | None:
    """Which rank is gone, where the script's error only says that a connection closed."""
    if not isinstance(error, Exception) or isinstance(error, HwalError) or not is_lost_peer(str(error)):
        return None
    told = rt.watchdog.explain()
    if told is not None:
        told.hint = told.hint or _go_on(rt, _newest(rt))
    return told


def _newest(rt: SharedTorchRuntime) -> str | None:
    """The run's newest checkpoint."""
    found = rt.checkpoints.found()
    return found[0].name if found else None


def _go_on(rt: SharedTorchRuntime, newest: str | None) -> str | None:
    """hwal's launcher says by itself what to go on from."""
    if newest is None or os.environ.get(STATE_DIR):
        return None
    return f"{spelled('resume', rt.run_dir)} goes on from {newest}"


class TorchOwner:
    """What a watchdog does to its rank (hwal.watch.watchdog.Owner), whatever its main thread does meanwhile."""

    def __init__(self, rt: SharedTorchRuntime) -> None:
        self._rt = rt

    def asked(self) -> str | None:
        return self._rt.stop_request.asked()

    def show(self, beat: Beat) -> None:
        leave_beat(os.environ, beat)

    def rest(self) -> None:
        drop_beat(os.environ, self._rt.rank)

    def tell(self, line: str) -> None:
        if self._rt.is_main:
            self._rt.say(line)
        else:  # into the log of its rank
            tell(line)

    def end(self, doom: Doom) -> None:
        """Ends this process: the metrics are written, its word is left, its children are ended."""
        code = EXIT_FAILED
        try:
            if doom.asked is not None and self._rt.gradients.count is None:
                code = self._nothing_lost(doom)
            else:
                self._failed(doom)
            for child in stacks.children_of(os.getpid()):
                stacks.kill(child)
        finally:
            os._exit(code)

    def _failed(self, doom: Doom) -> None:
        rt = self._rt
        hint = "; ".join(part for part in (_go_on(rt, self._files()), doom.hint) if part) or None
        lines = told(HwalError(doom.what, why=doom.why, hint=hint))
        if not last_word(os.environ, rt.rank, doom.what, lines, doom.lost):
            print("\n".join(lines if rt.is_main or doom.lost else lines[:1]), file=sys.stderr, flush=True)

    def _nothing_lost(self, doom: Doom) -> int:
        """Says that a run which was asked to end before it had done a step does so now; returns the exit code."""
        rt = self._rt
        source = rt.run_dir if self._files() is not None else rt.job.settings.resume
        code, line = nothing_to_save(doom.what, "before a step was done", source)
        code = rank_code(code, rt.job.world.launcher)
        if not nothing_lost(os.environ, rt.rank, f"hwal: {line}", code) and rt.is_main:
            print(f"hwal: {line}", file=sys.stderr, flush=True)
        return code

    def _files(self) -> str | None:
        """Writes the metrics down, and looks for the newest checkpoint; None also where the file system does not answer."""
        answer: list[str | None] = []

        def work() -> None:
            self._rt.reporter.close(True)
            answer.append(_newest(self._rt))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(FLUSH)
        return answer[0] if answer else None
