from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.errors import HwalError, RecordError, UsageError, WorldError
from hwal.launch.slurm import expand, in_step
from hwal.launch.world import job_id, port_of, read_world
from hwal.values import World

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1234@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "MASTER_PORT": "1234"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "6",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[01-03,7]",
}


def test_no_launcher_is_a_world_of_one() -> None:
    assert read_world({"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}) == World()


def test_torchrun() -> None:
    assert read_world(TORCHRUN) == World(3, 4, 1, 2, "torchrun", "node0", 29500)


def test_a_world_that_hwal_has_found_out_comes_before_a_launchers_variables() -> None:
    world = World(1, 4, 0, 1, "slice", "10.0.0.1", 29500)
    environ = {**TORCHRUN, "HWAL_WORLD": world.to_json()}
    assert read_world(environ) == world
    assert read_world({**TORCHRUN, "HWAL_WORLD": ""}).launcher == "torchrun"
    assert job_id(environ, world) is None  # its hosts have no name in common for this run
    with pytest.raises(RecordError, match="not JSON"):
        read_world({"HWAL_WORLD": "{"})


def test_rank_and_size_alone_are_one_process_a_machine_or_all_on_loopback() -> None:
    cluster = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "1"}
    assert read_world(cluster) == World(1, 2, 0, 1, "torchrun", "node0", 1)
    assert read_world({**cluster, "MASTER_ADDR": "localhost"}) == World(1, 2, 1, 2, "torchrun", "localhost", 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RANK": "x"}, "RANK"),
        ({"RANK": "-1"}, "RANK"),
        ({"RANK": "4"}, "RANK=4"),
        ({"RANK": None}, "RANK"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "3.0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "٤"}, "WORLD_SIZE"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({"MASTER_PORT": None}, "MASTER_PORT"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
        ({"LOCAL_RANK": None}, "LOCAL_RANK"),
        ({"LOCAL_WORLD_SIZE": None}, "LOCAL_WORLD_SIZE"),
        ({"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8"),
    ],
)
def test_broken_torchrun_variables_are_named(change: dict[str, str | None], named: str) -> None:
    environ = {name: text for name, text in {**TORCHRUN, **change}.items() if text is not None}
    with pytest.raises(HwalError) as caught:
        read_world(environ)
    assert isinstance(caught.value, WorldError | UsageError) and named in caught.value.what


def test_mpi_on_one_machine_needs_no_address() -> None:
    world = read_world(OMPI)
    assert world == World(1, 2, 1, 2, "mpi", "127.0.0.1", port_of("prterun-1234@1"))
    assert read_world(HYDRA) == World(1, 2, 1, 2, "mpi", "127.0.0.1", 1234)


def test_mpi_without_a_meeting_point_says_what_to_export() -> None:
    with pytest.raises(WorldError, match="MASTER_PORT"):
        read_world({name: text for name, text in OMPI.items() if name != "PMIX_NAMESPACE"})
    with pytest.raises(WorldError, match="MASTER_ADDR"):
        read_world({**OMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    with pytest.raises(WorldError, match="MPI_LOCALRANKID"):
        read_world({"PMI_RANK": "0", "PMI_SIZE": "2"})


def test_slurm_counts_only_inside_a_step() -> None:
    assert read_world(SLURM) == World(6, 7, 0, 1, "slurm", "node01", port_of("77.0"))
    for step in (None, "batch", "extern", "interactive", "4294967291", "4294967290"):
        environ = {name: text for name, text in {**SLURM, "SLURM_STEP_ID": step}.items() if text is not None}
        assert not in_step(environ) and read_world(environ) == World()


def test_slurm_reads_the_tasks_of_its_own_node() -> None:
    environ = {**SLURM, "SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}
    assert read_world(environ).local_size == 2
    with pytest.raises(WorldError, match="SLURM_NODEID=4"):
        read_world({**SLURM, "SLURM_NODEID": "4"})
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE"):
        read_world({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "two"})
    with pytest.raises(WorldError, match="SLURM_PROCID=7"):
        read_world({**SLURM, "SLURM_PROCID": "7"})


def test_the_innermost_launcher_counts() -> None:
    assert read_world({**SLURM, **OMPI, **TORCHRUN}).launcher == "torchrun"
    assert read_world({**SLURM, **OMPI}).launcher == "mpi"
    assert read_world({**SLURM, **HYDRA}).launcher == "mpi"
    assert read_world({**SLURM, "PMI_RANK": "6", "PMI_SIZE": "7"}).launcher == "slurm"  # srun --mpi=pmi2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize("text", ["", "node[", "node]", "a,,b", "n[1-]", "n[a]", "n[1-2-3]", "n[[1]]"])
def test_broken_node_lists(text: str) -> None:
    with pytest.raises(UsageError):
        list(expand(text))


@given(st.lists(st.integers(0, 999), min_size=1, max_size=6), st.sampled_from(["", "-ib"]))
def test_node_lists_read_back(numbers: list[int], after: str) -> None:
    text = f"node[{','.join(f'{number:03d}' for number in numbers)}]{after}"
    assert list(expand(text)) == [f"node{number:03d}{after}" for number in numbers]


@given(
    st.dictionaries(
        st.sampled_from([*TORCHRUN, *OMPI, *HYDRA, *SLURM]), st.sampled_from(["", "0", "1", "2", "x", "-1", "n[1-2]"])
    )
)
def test_whatever_the_variables_hold_the_answer_is_a_world_or_a_named_error(environ: dict[str, str]) -> None:
    try:
        world = read_world(environ)
    except HwalError as error:
        assert any(name in str(error) for name in (*environ, "MASTER_ADDR", "MASTER_PORT", "SLURM", "node", "mpirun"))
    else:
        assert 0 <= world.rank < world.size and 0 <= world.local_rank < world.local_size <= world.size
        assert world.size == 1 or (world.address and world.port)


def test_job_ids_are_equal_on_all_ranks_and_none_without_a_world() -> None:
    assert job_id({}, World()) is None
    assert job_id(SLURM, read_world(SLURM)) == "77.0"
    uuid = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "70413b24-1111-2222-3333-444455556666"}
    assert job_id(uuid, read_world(uuid)) == "70413b24"
    assert job_id({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, read_world(TORCHRUN)) == "29500"
    assert job_id(OMPI, read_world(OMPI)) == str(port_of("prterun-1234@1"))
