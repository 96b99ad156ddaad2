"""Several processes that train together: TensorFlow's cluster, by the files in which its workers tell where they listen."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hwal.aside import write_file
from hwal.errors import WorldError
from hwal.launch.world import round_of
from hwal.values import World
from hwal.watch.link import Hub, Spoke
from hwal_keras.watching import join_hub, open_hub

if TYPE_CHECKING:
    from hwal.runtime import Job

CLUSTER = "TF_CONFIG"
TICK = 0.05  # seconds between two looks for the others
HERE, ELSEWHERE = 25.0, 600.0  # seconds to wait for them: on one machine, across several


def meet(job: Job, folder: Path, environ: MutableMapping[str, str] = os.environ) -> Hub | Spoke | None:
    """Sets TF_CONFIG, unless the user has: where every worker listens, in the order of the ranks. All see `folder`.

    Returns this rank's end of the watch's sockets. Raises WorldError where a worker does not come.
    """
    world = job.world
    if environ.get(CLUSTER):
        _check(environ[CLUSTER], world)
        return None
    name = "127.0.0.1" if world.is_local else socket.gethostname()
    with socket.socket() as probe:
        probe.bind(("", 0))
        address = f"{name}:{probe.getsockname()[1]}"
    place = folder / f".workers-{round_of(environ)}-{world.port}"
    place.mkdir(mode=0o700, exist_ok=True)  # the watch's key is in it
    link: Hub | Spoke | None = None
    told = ""
    if world.rank == 0:
        link, told = open_hub(world, name)
    write_file(place / str(world.rank), f"{address}\n{told}")
    words = _wait(place, world, job.settings.start_timeout or (HERE if world.is_local else ELSEWHERE))
    if world.rank != 0:
        link = join_hub(world, words[0].partition("\n")[2])
    cluster = {"worker": [word.partition("\n")[0] for word in words]}
    environ[CLUSTER] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": world.rank}})
    return link


def _wait(place: Path, world: World, limit: float) -> list[str]:
    """What every rank has left, in their order."""
    deadline = time.monotonic() + limit
    while True:
        missing = [rank for rank in range(world.size) if not (place / str(rank)).exists()]
        if not missing:
            return [(place / str(rank)).read_text(encoding="utf-8") for rank in range(world.size)]
        if time.monotonic() > deadline:
            named = ", ".join(map(str, missing))
            raise WorldError(
                f"rank{'s' * (len(missing) > 1)} {named} did not come within {limit:g} s",
                where=str(place),
                why="each worker leaves its address in the run's folder, which all of them must see",
                hint="--out on a disk that all machines share; --start-timeout S waits longer",
            )
        time.sleep(TICK)


def _check(text: str, world: World) -> None:
    """Raises WorldError where the user's TF_CONFIG is of another world than the one that the launcher started."""
    try:
        document = json.loads(text)
        size, index = len(document["cluster"]["worker"]), int(document["task"]["index"])
    except (ValueError, KeyError, TypeError):
        raise WorldError(f"{CLUSTER} cannot be read", where=f"{CLUSTER}={text:.80}", hint=f"unset {CLUSTER}") from None
    if (size, index) != (world.size, world.rank):
        raise WorldError(
            f"{CLUSTER} says worker {index} of {size}, the launcher rank {world.rank} of {world.size}",
            where=CLUSTER,
            hint=f"unset {CLUSTER}: hwal sets it",
        )


def strategy(nccl: bool = False) -> Any:
    """The strategy over the workers of TF_CONFIG. `nccl`: their devices are GPUs that reach each other by it."""
    implementations = tf.distribute.experimental.CommunicationImplementation
    ways = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if nccl else implementations.RING
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=ways)


def add(strategy: Any, *numbers: float) -> list[float]:
    """The sum of each number over all processes, each of which has as many replicas. Every process calls it."""
    here = len(strategy.extended.worker_devices)
    return [float(number) for number in _sum(strategy)(tf.constant([number / here for number in numbers], tf.float64))]


@cache
def _sum(strategy: Any) -> Any:
    return tf.function(lambda numbers: strategy.reduce("SUM", strategy.run(lambda: numbers), axis=None), reduce_retracing=True)
