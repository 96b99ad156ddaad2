"""Joining the world, and proving that it is the one that was asked for."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hwal.errors import WorldError
from hwal.launch.world import round_of
from hwal.values import World

LOCAL_TIMEOUT = 25.0  # seconds, when all ranks are on this machine: with imports, an error in under 30
REMOTE_TIMEOUT = 600.0
COLLECTIVES = timedelta(minutes=30)  # torch's own limit, once the world stands: a rank may save, or load data, that long
FOR_EVER = timedelta(days=365)
_joined = itertools.count()


def join(
    world: World, collectives: str, device: torch.device, timeout: float | None, hang_timeout: float | str | None = None
) -> Store:
    """Makes the process group of `world`, checks by a collective that every rank is in it, and returns the world's store.

    Raises WorldError naming the ranks that did not come within `timeout` seconds.
    """
    limit = timeout or (LOCAL_TIMEOUT if world.is_local else REMOTE_TIMEOUT)
    deadline = time.monotonic() + limit
    store = _store(world, limit)
    _roll_call(store, world, deadline, limit)
    try:
        dist.init_process_group(
            backends_of(collectives, device),
            store=PrefixStore("group", store),
            rank=world.rank,
            world_size=world.size,
            timeout=longest(hang_timeout),
        )
        seen = torch.zeros(world.size, device=device)
        seen[world.rank] = 1
        met = _meet(seen, max(deadline - time.monotonic(), 5))
    except (RuntimeError, dist.DistError) as error:
        raise WorldError(
            f"rank {world.rank} of {world.size}: the ranks found each other but could not exchange data",
            where=_where(world),
            why=str(error).splitlines()[0],
            hint="check that no firewall stands between them; GLOO_SOCKET_IFNAME names the network interface",
        ) from None
    if met is None:
        raise WorldError(
            f"rank {world.rank} of {world.size}: the ranks found each other, and their first collective does not end",
            where=_where(world),
            why=f"{collectives} has not come back within {limit:g} s",
            hint="NCCL_DEBUG=INFO tells what it waits for; NCCL_SOCKET_IFNAME (GLOO_…) names the network interface",
        )
    if met != [1.0] * world.size:
        raise WorldError(f"the first collective of {world.size} ranks gave {met}", where=_where(world))
    return store


def longest(hang_timeout: float | str | None) -> timedelta:
    """How long torch lets a collective wait: longer than a hang is allowed to take, or it would end what the user lets be."""
    if isinstance(hang_timeout, str):  # off
        return FOR_EVER
    return max(COLLECTIVES, timedelta(seconds=2 * (hang_timeout or 0)))


def backends_of(collectives: str, device: torch.device) -> str:
    """What init_process_group is given: the device's own collectives, and gloo for the host's memory (+offload)."""
    return collectives if device.type == "cpu" else f"cpu:gloo,{device.type}:{collectives}"


def _meet(seen: torch.Tensor, limit: float) -> list[float] | None:
    """The sum of all ranks' tensors; None after `limit` seconds. Raises what the collective raises.

    On a thread: NCCL makes its connections within the call, and heeds no limit there.
    """
    answer: list[list[float] | RuntimeError] = []

    def add() -> None:
        try:
            if seen.device.type != "cpu":  # a thread begins on device 0
                torch.get_device_module(seen.device).set_device(seen.device)
            dist.all_reduce(seen)
            answer.append(seen.tolist())
        except RuntimeError as error:  # torch's DistError is one
            answer.append(error)

    thread = threading.Thread(target=add, daemon=True, name="first collective")
    thread.start()
    thread.join(limit)
    met = answer[0] if answer else None
    if isinstance(met, RuntimeError):
        raise met
    return met


def _where(world: World) -> str:
    return f"{world.address}:{world.port}, world from {world.launcher}"


def _store(world: World, limit: float) -> Store:
    """The key-value store at MASTER_ADDR:MASTER_PORT: served by rank 0, or by torchrun's agent where it says so."""
    assert world.address is not None and world.port is not None, "read_world checks this"
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = world.rank == 0 and not by_agent
    if not serves:
        _await(world, limit)
    try:
        store = TCPStore(
            world.address, world.port, None, serves, timedelta(seconds=limit), wait_for_workers=False, multi_tenant=True
        )
    except (RuntimeError, dist.DistError) as error:
        taken = "address already in use" in str(error).lower() or "EADDRINUSE" in str(error)
        if not taken:
            raise _no_answer(world, limit) from None
        raise WorldError(
            f"port {world.port} is taken by another program",
            where=_where(world),
            hint="export another MASTER_PORT, or let `hwal train` choose one",
        ) from None
    # a world that started again, or a second Runtime of the same process, must not read the last one's names
    return PrefixStore(f"hwal/{round_of(os.environ)}/{next(_joined)}", store)


def _await(world: World, limit: float) -> None:
    """Returns when somebody listens there. torch, which could wait too, prints frames of its own where nobody comes."""
    deadline = time.monotonic() + limit
    while True:
        try:
            socket.create_connection(
                (world.address or "", world.port or 0), timeout=max(deadline - time.monotonic(), 0.1)
            ).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise _no_answer(world, limit) from None
            time.sleep(0.05)


def _no_answer(world: World, limit: float) -> WorldError:
    return WorldError(
        f"rank 0 did not answer within {limit:g} s",
        where=_where(world),
        why=f"rank {world.rank} of {world.size} waits for it; is it running?",
        hint="start all ranks, or unset WORLD_SIZE",
    )


def _roll_call(store: Store, world: World, deadline: float, limit: float) -> None:
    """Every rank signs in and waits until all have."""
    me = f"{socket.gethostname()}, process {os.getpid()}"
    try:
        if store.add(f"count/{world.rank}", 1) > 1:
            raise WorldError(
                f"two processes say that they are rank {world.rank} of {world.size}: here {me}, "
                f"there {store.get(f'who/{world.rank}').decode()}",
                where=_where(world),
                hint="give each process its own RANK, or each job its own MASTER_PORT",
            )
        store.set(f"who/{world.rank}", me)
        missing = list(range(world.size))
        while missing:
            missing = [rank for rank in missing if not store.check([f"who/{rank}"])]
            if missing and time.monotonic() > deadline:
                raise _missing(missing, world, limit)
            if missing:
                time.sleep(0.02)
        store.add("left", 1)
        if world.rank == 0:  # it serves the store: it stays until all others have read the roll
            while store.add("left", 0) < world.size and time.monotonic() < deadline:
                time.sleep(0.01)
    except (RuntimeError, dist.DistError) as error:
        raise WorldError(
            f"rank {world.rank} of {world.size} lost the others while they were gathering",
            where=_where(world),
            why=str(error).splitlines()[0],
        ) from None


def _missing(missing: list[int], world: World, limit: float) -> WorldError:
    ranks = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
    return WorldError(
        f"{len(missing)} of {world.size} ranks did not come within {limit:g} s: rank {ranks} missing",
        where=f"rank {world.rank} at {_where(world)}",
        why="WORLD_SIZE promises more processes than were started, or one of them died before hwal.start()",
        hint="start all ranks; or `hwal train -n N script.py`, which starts them; --start-timeout waits longer",
    )


def leave() -> None:
    """Leaves the process group, if there is one, and ends its threads.

    gloo's threads drop the tensors of finished work late, for which they take the interpreter's lock; one that finds the
    interpreter gone aborts the process. They are joined with their group, which the cycles of a DDP module would hold.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()
