"""The watch over a torch world (hwal.watch): how its frames look, where its ranks' sockets meet, how a rank ends."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hwal.env import STATE_DIR
from hwal.errors import EXIT_FAILED, HwalError, LostRankError
from hwal.launch.outcome import is_lost_peer
from hwal.launch.script import told
from hwal.launch.word import last_word
from hwal.values import World
from hwal.watch import stacks
from hwal.watch.beat import Doom
from hwal.watch.link import Hub, Spoke
from hwal.watch.spot import Signs
from hwal.watch.watchdog import Place, Watchdog

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SIGNS = Signs(
    collectives=("torch.distributed",),
    may_wait=("_engine_run_backward",),  # DDP's all-reduces end in there, and FSDP's on devices of their own
    compilers=("torch._dynamo.convert_frame", "torch._inductor.compile_fx"),
    names={"_train": "feed", "_evaluate": "feed", "_micro_batches": "feed"},
)
FLUSH = 1.0  # seconds that metrics have to get into their file: they may hang on the same device


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
        print(f"hwal: note: rank {world.rank} stands apart from the watch over hangs: {error}", file=sys.stderr)
        return None


def watch(rt: SharedTorchRuntime, store: Store | None) -> Watchdog:
    """A watchdog over this rank, at work."""
    place = Place(rt.rank, rt.world_size, partial(_hint, rt))
    progress = rt.progress
    asked = rt.stop_request
    dog = Watchdog(
        place,
        rt.pulse,
        lambda: progress.step,
        rt.job.settings.hang_timeout,
        SIGNS,
        partial(_end, rt),
        lambda: asked.name is not None,
        rt.say,
    )
    dog.start(None if store is None else meet(store, rt.job.world))
    return dog


def explain(rt: SharedTorchRuntime, error: BaseException | None) -> LostRankError | None:
    """Which rank is gone, where the script's error only says that a connection closed."""
    if not isinstance(error, Exception) or isinstance(error, HwalError) or not is_lost_peer(str(error)):
        return None
    return rt.watchdog.explain()


def _hint(rt: SharedTorchRuntime) -> str | None:
    """hwal's launcher says by itself what to go on from."""
    found = None if os.environ.get(STATE_DIR) else rt.checkpoints.found()
    return f"--resume {rt.run_dir} goes on from {found[0].name}" if found else None


def _end(rt: SharedTorchRuntime, doom: Doom) -> None:
    """Ends this process, whatever its main thread does: the metrics are written, its word is left, its children are ended."""
    try:
        flush = threading.Thread(target=rt.reporter.close, args=(True,), daemon=True)
        flush.start()
        flush.join(FLUSH)
        lines = told(HwalError(doom.what, why=doom.why, hint=doom.hint))
        if not last_word(os.environ, rt.rank, doom.what, lines, doom.lost):
            print("\n".join(lines if rt.is_main or doom.lost else lines[:1]), file=sys.stderr, flush=True)
        for child in stacks.children_of(os.getpid()):
            stacks.kill(child)
    finally:
        os._exit(EXIT_FAILED)
