"""Several processes that train together: TensorFlow's cluster, by the files in which its workers tell where they listen."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
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
LIST = "all"  # the file in which rank 0 tells all addresses
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
    limit = job.settings.start_timeout or (HERE if world.is_local else ELSEWHERE)
    link: Hub | Spoke | None
    if world.rank == 0:
        link, told = open_hub(world, name)
        addresses = _gather(place, world, limit, address, told)
    else:
        addresses, told = _answer(place, world, limit, address)
        link = join_hub(world, told)
    environ[CLUSTER] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": world.rank}})
    return link


# A run that was killed has left its files in the folder in which it is resumed. So rank 0 clears the folder before it reads,
# the others write again what went with it, and believe only a list that holds the word which they made up for this start.


def _gather(place: Path, world: World, limit: float, address: str, told: str) -> list[str]:
    """Rank 0's part: lists what all have left, and clears up once they have read it. The addresses, in the order of the ranks.

    `told`: what open_hub gave.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700, exist_ok=True)  # the watch's key is in it; another rank may have made it
    write_file(place / "0", json.dumps([address, ""]))
    _wait(place, limit, lambda: _absent(place, world))
    words = [json.loads((place / str(rank)).read_text(encoding="utf-8")) for rank in range(world.size)]
    addresses, nonces = ([word[part] for word in words] for part in (0, 1))
    write_file(place / LIST, json.dumps([addresses, nonces, told]))
    _wait(place, limit, lambda: [rank for rank in range(1, world.size) if (place / str(rank)).exists()])
    shutil.rmtree(place, ignore_errors=True)
    return addresses


def _answer(place: Path, world: World, limit: float, address: str) -> tuple[list[str], str]:
    """Another rank's part: leaves its address, and waits for the list. The addresses, and what open_hub told rank 0."""
    mine, nonce = place / str(world.rank), secrets.token_hex(8)
    text = json.dumps([address, nonce])
    found: list[Any] = []

    def missing() -> list[int]:
        with suppress(FileNotFoundError, FileExistsError):  # rank 0 clears at this moment, or has not told yet
            place.mkdir(mode=0o700, exist_ok=True)
            if not mine.exists() or mine.read_text(encoding="utf-8") != text:
                write_file(mine, text)
            addresses, nonces, told = json.loads((place / LIST).read_text(encoding="utf-8"))
            if nonce in nonces:
                found[:] = addresses, told
                return []
        return _absent(place, world) or [0]

    _wait(place, limit, missing)
    mine.unlink()
    return found[0], found[1]


def _absent(place: Path, world: World) -> list[int]:
    return [rank for rank in range(world.size) if not (place / str(rank)).exists()]


def _wait(place: Path, limit: float, missing: Callable[[], list[int]]) -> None:
    """Until no rank is `missing` any more. Raises WorldError, which names those that are, after `limit` seconds."""
    deadline = time.monotonic() + limit
    while ranks := missing():
        if time.monotonic() > deadline:
            raise WorldError(
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} did not come within {limit:g} s",
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
