"""The watch over a Keras world (hwal.watch): how its frames look, and where its ranks' sockets meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwal.display import tell
from hwal.launch.owner import RankOwner
from hwal.values import World
from hwal.watch.link import Hub, Spoke
from hwal.watch.spot import Signs
from hwal.watch.watchdog import Member, Watchdog

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

SIGNS = Signs(
    collectives=("tensorflow.python.eager.execute",),  # a step's graph, in which the gradients of all ranks come together
    compilers=("tensorflow.python.framework.func_graph",),  # a graph is made of the script's own functions
    names={"fit": "model.fit", "evaluate": "model.evaluate", "__iter__": "rt.feed"},
)


def open_hub(world: World, address: str) -> tuple[Hub | None, str]:
    """Rank 0's end of the watch's sockets, and what the others need to find it; nothing, told, where there can be none."""
    try:
        hub = Hub(address)
    except OSError as error:
        _apart(world.rank, error)
        return None, ""
    return hub, f"{address} {hub.port} {hub.key}"


def join_hub(world: World, told: str) -> Spoke | None:
    """Another rank's end. `told`: what open_hub gave rank 0. None, told, where that cannot be reached: it is alone then."""
    if not told:
        return None
    address, port, key = told.split(" ")
    try:
        return Spoke(address, int(port), key, world.rank)
    except OSError as error:
        _apart(world.rank, error)
        return None


def _apart(rank: int, error: OSError) -> None:
    tell(f"hwal: note: rank {rank} stands apart from the watch over hangs: {error}")


def watch(rt: SharedKerasRuntime, link: Hub | Spoke | None) -> Watchdog:
    """A watchdog over this rank, at work."""
    rt.stop_request.listen()
    progress, timeout = rt.progress, rt.job.settings.hang_timeout
    owner = RankOwner(rt, lambda: rt.at_work is not None or progress.step > 0)
    dog = Watchdog(Member(rt.rank, rt.world_size), rt.pulse, lambda: progress.step, timeout, SIGNS, owner)
    dog.start(link)
    return dog
