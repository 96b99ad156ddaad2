"""The watch over a torch world (hwal.watch): how its frames look, and where its ranks' sockets meet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hwal.display import tell
from hwal.launch.owner import RankOwner
from hwal.values import World
from hwal.watch.link import Hub, Spoke
from hwal.watch.spot import Signs
from hwal.watch.watchdog import Member, Watchdog

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SIGNS = Signs(
    collectives=("torch.distributed",),
    may_wait=("_engine_run_backward",),  # DDP's all-reduces end in there, and FSDP's on devices of their own
    compilers=("torch._dynamo.convert_frame", "torch._inductor.compile_fx"),
    names={"train": "rt.feed", "evaluate": "rt.feed", "_micro_batches": "rt.feed"},
)


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
    owner = RankOwner(rt, lambda: rt.gradients.count is not None)
    dog = Watchdog(Member(rt.rank, rt.world_size), rt.pulse, lambda: progress.step, timeout, signs, owner)
    dog.start(None if store is None else meet(store, rt.job.world))
    return dog
