"""`hwal devices order`, `select` and `groups`, and --from of what vendors' tools print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.paper import Result
from tests.order.machines import MATRICES

Hwal = Callable[..., Result]


@pytest.fixture
def topo(folder: Path) -> str:
    """A DGX-1V, as nvidia-smi topo -m prints it."""
    return matrix(folder, "dgx-1v")


def matrix(folder: Path, name: str) -> str:
    rows = MATRICES[name].strip().splitlines()
    head = "\t" + "\t".join(f"GPU{i}" for i in range(len(rows)))
    lines = [head, *(f"GPU{i}\t" + "\t".join(row.split()) for i, row in enumerate(rows))]
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return f"{name}.txt"


EXPLAINED = """\
order: 0 3 2 1 5 6 7 4
worst link: NV2
objective: ring: worst link, then fewest of it, then sum, then fewest NUMA changes, then PCI order
why: every order of 8 devices was weighed (dynamic program over sets)
links in use: 0 NV2 3 NV2 2 NV2 1 NV2 5 NV2 6 NV2 7 NV2 4 NV2 0
assumed: NV1 25 GB/s, NV2 50 GB/s, SYS 9 GB/s, as no driver told
NCCL and RCCL search their own rings: this order matters for choosing, groups, stages and NUMA, not for them
"""


def test_an_order_and_why(hwal: Hwal, topo: str) -> None:
    assert hwal("devices", "order", "--from", topo, "--explain") == Result(0, EXPLAINED, "")
    assert hwal("devices", "order", "--from", topo).out == "order: 0 3 2 1 5 6 7 4\nworst link: NV2\n"
    assert "links in use: 0 NV2 3 NV2 2" in hwal("devices", "order", "--chain", "--from", topo, "--explain").out


def test_the_documents(hwal: Hwal, topo: str) -> None:
    document = json.loads(hwal("devices", "order", "--from", topo, "--json").out)
    assert document["order"] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert (document["exact"], document["bottleneck"]) == (True, "NV2")
    assert {"objective", "why", "assumed", "notes", "env"} < set(document) and document["bottleneck_proven"]
    chosen = json.loads(hwal("devices", "select", "-k", "2", "--from", topo, "--json").out)
    assert (chosen["selected"], chosen["bottleneck"]) == ([0, 3], "NV2")
    blocks = json.loads(hwal("devices", "groups", "-g", "4", "--from", topo, "--json").out)
    assert blocks["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_lines_for_a_shell(hwal: Hwal, topo: str) -> None:
    """No UUID is in such a file: numbers, and then their order too."""
    lines = hwal("devices", "select", "-k", "2", "--from", topo, "--env").out.splitlines()
    assert lines == ["export CUDA_DEVICE_ORDER=PCI_BUS_ID", "export CUDA_VISIBLE_DEVICES=0,3"]


def test_uuids_where_they_are_known(hwal: Hwal, folder: Path) -> None:
    uuids = [f"GPU-0000000{i}-0000-0000-0000-000000000000" for i in range(3)]
    (folder / "list.txt").write_text("".join(f"GPU {i}: NVIDIA A100 (UUID: {uuid})\n" for i, uuid in enumerate(uuids)))
    lines = hwal("devices", "select", "-k", "2", "--from", "list.txt", "--env").out.splitlines()
    assert lines == [f"export CUDA_VISIBLE_DEVICES={uuids[0]},{uuids[1]}"]


def test_the_fleets_objective_and_a_part(hwal: Hwal, topo: str) -> None:
    out = hwal("devices", "select", "-k", "4", "--objective", "pack", "--from", topo, "--explain").out
    assert out.startswith("selected: 0 1 2 3\n") and "go-gpuallocator" in out
    free = hwal("devices", "select", "-k", "2", "--free", "0,1,5", "--from", topo)
    assert free.out.splitlines()[0] == "selected: 1 5"
    taken = [
        hwal("devices", "select", "-k", "2", "--objective", objective, "--with", "5", "--from", topo).out.splitlines()[0]
        for objective in ("pack", "static", "simple")
    ]
    assert taken == ["selected: 5 6", "selected: 5 6", "selected: 5 0"]


def test_a_mask_that_is_set_here(hwal: Hwal, topo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file tells of a machine without masks: who types the lines here is told what they would widen."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    result = hwal("devices", "select", "-k", "2", "--from", topo, "--env")
    assert result.err == "hwal: CUDA_VISIBLE_DEVICES=2,3 is set here; these lines are for the machine in dgx-1v.txt\n"
    assert result.out.endswith("export CUDA_VISIBLE_DEVICES=0,3\n")


def test_gpus_that_are_cut_never_stand_in_a_ring(hwal: Hwal, folder: Path) -> None:
    rows = ["index, name, mig.mode.current", "0, H100, Disabled", "1, H100, Enabled", "2, H100, Disabled"]
    (folder / "some.csv").write_text("\n".join(rows))
    (folder / "all.csv").write_text("\n".join(row.replace("Disabled", "Enabled") for row in rows))
    for arguments, one in (
        (("order",), "order: 0 2"),
        (("groups", "-g", "2"), "groups: 0 2"),
        (("select", "-k", "1"), "selected: 0"),
    ):
        assert hwal("devices", *arguments, "--from", "some.csv").out.splitlines()[0] == one
        for more in ((), ("--env",), ("--json",)):  # an empty mask would hide every GPU
            result = hwal("devices", *arguments, "--from", "all.csv", *more)
            assert (result.code, result.out) == (2, "")
            assert "no cuda device is there to choose from" in result.err
            assert "cut into MIG instances are left out" in result.err
    result = hwal("devices", "order", "--device", "cuda", "--from", "all.csv")
    assert (result.code, result.out) == (2, "") and "all are cut into MIG instances" in result.err
    told = " ".join(hwal("devices", "--from", "all.csv").out.split())
    assert "auto would take cuda: no device is left, priority 100; all are cut into MIG instances" in told


def test_select_takes_what_is_free(hwal: Hwal, folder: Path, topo: str) -> None:
    document = json.loads(hwal("devices", "--from", topo, "--json").out)
    for probe in document["probes"]:
        for device in probe.get("devices", []):
            device["users"] = int(device["index"] == 0)
    for device in document["devices"]:
        device["users"] = int(device["index"] == 0)
    (folder / "used.json").write_text(json.dumps(document))
    result = hwal("devices", "select", "-k", "2", "--from", "used.json")
    assert result.out.splitlines()[0] == "selected: 1 2"
    assert "note: left out, in use by others: 0 (1 process" in result.out
    assert hwal("devices", "select", "-k", "2", "--free", "0,3", "--from", "used.json").out.startswith("selected: 0 3\n")
    assert "for want of free ones: 0 (1 process" in hwal("devices", "select", "-k", "8", "--from", "used.json").out
    assert hwal("devices", "order", "--from", "used.json").out.startswith("order: 0 3 2 1"), "all that are visible"


def test_kinds_are_not_mixed(hwal: Hwal, folder: Path) -> None:
    rows = ["index, name, compute_cap, memory.total [MiB]"]
    rows += [f"{i}, {name}" for i, name in enumerate(("T4, 7.5, 15360", "A100, 8.0, 40960", "A100, 8.0, 40960"))]
    (folder / "mixed.csv").write_text("\n".join(rows))
    result = hwal("devices", "order", "--from", "mixed.csv")
    assert result.out.splitlines()[0] == "order: 1 2"
    assert "only A100: a run that mixes kinds waits for the slowest (T4); --mixed" in result.out
    both = hwal("devices", "order", "--mixed", "--from", "mixed.csv").out
    assert both.splitlines()[0] == "order: 0 1 2"
    assert "1 × T4, 2 × A100: at the pace of T4 they do 195 of 689 TFLOPS; 2 × A100 alone do 624" in " ".join(both.split())
    assert hwal("devices", "select", "-k", "3", "--from", "mixed.csv").code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("select", "-k", "9"), "9 devices asked for, 8 are there"),
        (("select", "-k", "0"), "-k '0': must be 1 or more\n  where: hwal devices select\n"),
        (("groups", "-g", "x"), "-g 'x': must be a whole number\n  where: hwal devices groups\n"),
        (("select",), "-k"),
        (("select", "-k", "2", "--free", "0,8"), "no device '8'; there are 0, 1"),
        (("select", "-k", "2", "--with", "3"), "--with goes with --objective pack"),
        (("select", "-k", "2", "--objective", "pack", "--with", "1,2,3"), "has no set of 2 with 1,2,3 among them"),
        (("select", "-k", "3", "--objective", "static"), "static has no set of 3 to give"),
        (("groups", "-g", "3"), "8 = 2 × 3 + 2"),
        (("order", "--env", "--json"), "--env prints nothing but export lines"),
        (("order", "--cain"), "did you mean --chain?"),
        (("ordr",), "did you mean hwal devices order?"),
    ],
)
def test_mistakes(hwal: Hwal, topo: str, arguments: tuple[str, ...], says: str) -> None:
    result = hwal("devices", *arguments, "--from", topo)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_a_damaged_capture_names_the_line(hwal: Hwal, folder: Path, topo: str) -> None:
    text = (folder / topo).read_text()
    (folder / "cut.txt").write_text("\n".join(text.splitlines()[:5]))
    for arguments in (("devices",), ("devices", "order"), ("devices", "--json")):
        result = hwal(*arguments, "--from", "cut.txt")
        assert (result.code, result.out) == (2, "")
        assert "cut.txt, line 6" in result.err and "the row of GPU4 is missing" in result.err


def test_a_capture_as_a_machine(hwal: Hwal, folder: Path, topo: str) -> None:
    document = json.loads(hwal("devices", "--from", topo, "--json").out)
    assert [device["index"] for device in document["devices"]] == list(range(8))
    assert len(document["links"]) == 28 and document["links"][0]["class"] == "NV1"
    assert document["choice"]["backend"] == "cuda"
    (folder / "utf16.txt").write_bytes((folder / topo).read_text().encode("utf-16"))  # PowerShell's redirection
    assert json.loads(hwal("devices", "--from", "utf16.txt", "--json").out)["links"] == document["links"]


def test_this_machine_on_paper(hwal: Hwal) -> None:
    """One CPU node: nothing to order, and no variables."""
    assert hwal("devices", "order").out == "order: 0\n"
    result = hwal("devices", "order", "--env")
    assert (result.out, result.err) == ("", "hwal: no variable makes a process see these cpu devices and no others\n")
    assert hwal("devices", "order", "--device", "null").out.startswith("order: 0 1 2\nworst link: NULL")
