"""The world that a process was started in: read from the variables of torchrun, mpirun or srun. Pure.

When several launchers left theirs, the innermost counts: torchrun started inside an srun step, mpirun over srun.
"""

from __future__ import annotations

from collections.abc import Mapping

from hwal.env import ATTEMPT, ROUND, WORLD
from hwal.errors import UsageError, WorldError
from hwal.launch import slurm
from hwal.values import LOOPBACK, SLICE, World


def read_world(environ: Mapping[str, str]) -> World:
    """The World that `environ` describes; a world of one, launcher "none", when no launcher left its variables.

    What hwal has found out by itself (Backend.world) comes before them.

    Raises UsageError for a variable that is no number, WorldError for numbers that do not fit together; both name it.
    """
    if text := environ.get(WORLD):
        return World.from_json(text, WORLD)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "OMPI_COMM_WORLD_RANK" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return _mpi(
            environ,
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
        )
    step = slurm.in_step(environ)
    # srun --mpi=pmi2 sets PMI_RANK too, without the local ranks; Intel MPI and MPICH set both.
    if ("PMI_RANK" in environ or "PMI_SIZE" in environ) and not (step and "MPI_LOCALRANKID" not in environ):
        return _mpi(
            environ,
            "PMI_RANK",
            "PMI_SIZE",
            "MPI_LOCALRANKID",
            "MPI_LOCALNRANKS",
            ("HYDRA_JOB_ID", "PMI_JOBID", "PMI_ID_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
        )
    if step:
        return _slurm(environ)
    return World()


def job_id(environ: Mapping[str, str], world: World) -> str | None:
    """What names this world and is the same on each of its ranks; None in a world of one that nobody started."""
    if world.launcher == "none":
        return None
    if world.launcher == "torchrun":
        name = environ.get("TORCHELASTIC_RUN_ID")
        if name and name != "none":
            return name[:8] if len(name) == 36 and name.count("-") == 4 else name
    if world.launcher == "slurm":
        return f"{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    if world.launcher == SLICE:
        return None  # nobody has named this run
    return str(world.port) if world.port is not None else None


def round_of(environ: Mapping[str, str]) -> str:
    """What is another each time that torchrun starts a world, and the same on each of its ranks; "0" at first."""
    return environ.get(ROUND) or environ.get("TORCHELASTIC_RESTART_COUNT") or "0"


def starts_again(environ: Mapping[str, str]) -> bool:
    """Whether this run was started before: a rank failed, a machine came or went, a micro-batch did not fit."""
    return round_of(environ) != "0" or bool(environ.get(ATTEMPT))


def number(environ: Mapping[str, str], name: str) -> int:
    """A variable that holds a whole number, 0 or more."""
    text = environ[name].strip()
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={environ[name]!r} is not a whole number", where="environment", hint=f"unset {name}")
    return int(text)


ALIKE = "unset what a launcher has left behind, or let one set them all: hwal train, torchrun, mpirun, srun"


def _checked(world: World, rank: str, size: str, local_rank: str, local_size: str) -> World:
    """`world`, if its numbers fit; the names are those of the variables that they were read from."""
    if world.size < 1:
        raise WorldError(f"{size}={world.size}: a world has at least one rank", where="environment", hint=ALIKE)
    for name, value, of, count in (
        (rank, world.rank, size, world.size),
        (local_rank, world.local_rank, local_size, world.local_size),
    ):
        if value >= count:
            raise WorldError(
                f"{name}={value} is not below {of}={count}", where="environment", why="ranks count from 0", hint=ALIKE
            )
    if world.local_size > world.size:
        raise WorldError(f"{local_size}={world.local_size} is more than {size}={world.size}", where="environment", hint=ALIKE)
    return world


def _pair(environ: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    for name, other in ((rank, size), (size, rank)):
        if name not in environ:
            raise WorldError(
                f"{other} is set but {name} is not",
                where="environment",
                why="together they say which process this is and of how many",
                hint=f"set {name}, or unset {other}",
            )
    return number(environ, rank), number(environ, size)


def _torchrun(environ: Mapping[str, str]) -> World:
    rank, size = _pair(environ, "RANK", "WORLD_SIZE")
    address = environ.get("MASTER_ADDR") or None
    port = _port(environ)
    if size > 1:
        for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)):
            if value is None:
                raise WorldError(
                    f"WORLD_SIZE={size}, but {name} is not set: the ranks cannot find each other",
                    where="environment",
                    hint="start the ranks by torchrun or hwal train, or unset RANK and WORLD_SIZE",
                )
    local_rank, local_size = _local(environ, rank, size, address)
    world = World(rank, size, local_rank, local_size, "torchrun", address, port)
    return _checked(world, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _local(environ: Mapping[str, str], rank: int, size: int, address: str | None) -> tuple[int, int]:
    """Rank and number of ranks on this machine. Ranks that meet on the loopback address are all on it."""
    here = size == 1 or address in LOOPBACK
    if "LOCAL_WORLD_SIZE" in environ:
        local_size = number(environ, "LOCAL_WORLD_SIZE")
    elif here:
        local_size = size
    elif "LOCAL_RANK" in environ:
        raise WorldError(
            "LOCAL_RANK is set but LOCAL_WORLD_SIZE is not: how many ranks share this machine is unknown",
            where="environment",
            hint="set LOCAL_WORLD_SIZE, as torchrun does",
        )
    else:
        local_size = 1  # a cluster that sets RANK and WORLD_SIZE only starts one process a machine
    if "LOCAL_RANK" in environ:
        return number(environ, "LOCAL_RANK"), local_size
    if here:
        return rank, local_size
    if local_size > 1:
        raise WorldError("LOCAL_WORLD_SIZE is set but LOCAL_RANK is not", where="environment", hint="set LOCAL_RANK")
    return 0, local_size


def _mpi(environ: Mapping[str, str], rank: str, size: str, local_rank: str, local_size: str, jobs: tuple[str, ...]) -> World:
    at, count = _pair(environ, rank, size)
    if count == 1:
        return (
            World(0, 1, 0, 1, "mpi", environ.get("MASTER_ADDR") or None, _port(environ))
            if at == 0
            else _checked(World(at, 1), rank, size, local_rank, local_size)
        )
    local_at, local_count = _pair(environ, local_rank, local_size) if {local_rank, local_size} & set(environ) else (None, None)
    if local_at is None or local_count is None:
        raise WorldError(
            f"{size}={count}, but {local_rank} and {local_size} are not set: how many ranks share this machine is unknown",
            where="environment",
            hint=f"export {local_rank} and {local_size}, or start the ranks by torchrun or hwal train",
        )
    address, port = environ.get("MASTER_ADDR") or None, _port(environ)
    if address is None and local_count == count:
        address = "127.0.0.1"
    if port is None:
        job = next((environ[name] for name in jobs if environ.get(name)), None)
        port = port_of(job) if job is not None else None
    for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)):
        if value is None:
            raise WorldError(
                f"mpirun started {count} ranks, but {name} is not set: the ranks cannot find each other",
                where="environment",
                hint="export MASTER_ADDR (the first host's name) and MASTER_PORT (a free port), and pass both on to every rank",
            )
    world = World(at, count, local_at, local_count, "mpi", address, port)
    return _checked(world, rank, size, local_rank, local_size)


def _slurm(environ: Mapping[str, str]) -> World:
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    size = next((name for name in sizes if name in environ), "SLURM_NTASKS")
    rank, count = _pair(environ, "SLURM_PROCID", size)
    local_rank = number(environ, "SLURM_LOCALID") if "SLURM_LOCALID" in environ else 0
    local_size, source = slurm.tasks_here(environ, count)
    address, port = environ.get("MASTER_ADDR") or None, _port(environ)
    if count > 1:
        address = address or slurm.first_node(environ)
        port = port or port_of(f"{environ.get('SLURM_JOB_ID', '0')}.{environ['SLURM_STEP_ID']}")
    world = World(rank, count, local_rank, local_size, "slurm", address, port)
    return _checked(world, "SLURM_PROCID", size, "SLURM_LOCALID", source)


def port_of(job: str) -> int:
    """A port in 15000-31999, below the range that systems hand out by themselves: the same on every rank of `job`."""
    total = 0
    for character in job:
        total = (total * 131 + ord(character)) % 1_000_003
    return 15000 + total % 17000


def _port(environ: Mapping[str, str]) -> int | None:
    if not environ.get("MASTER_PORT"):
        return None
    port = number(environ, "MASTER_PORT")
    if not 0 < port < 65536:
        raise UsageError(f"MASTER_PORT={port} is not a port: 1 to 65535", where="environment")
    return port
