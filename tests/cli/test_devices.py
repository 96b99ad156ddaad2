"""`hwal devices`: its table and its document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hwal.cli.devices import ranges, table
from hwal.display import size
from hwal.topology import Device, Link
from hwal.values import Choice, HostFacts, Machine, Probe, Target
from tests.cli.paper import BLOCKED, CPU, MACHINE, Result

Hwal = Callable[..., Result]

TABLE = """\
paper: linux x86_64

cpu: 4 cores
  #  name     id     memory   NUMA  cores  threads
  0  Toy CPU  node0  8.0 GiB  0     0-3    4
  native precisions: bf16 (AMX-BF16), fp32 (AVX512)

null: 3 imaginary devices
  #  name              id     memory  NUMA  cores  threads
  0  imaginary device  null0  ?       ?     ?      ?
  1  imaginary device  null1  ?       ?     ?      ?
  2  imaginary device  null2  ?       ?     ?      ?
  native precisions: fp32 (CPU)
  links NULL (from table): 0-1 0-2 1-2

toy: blocked: the driver is too old: 470, and 525 is needed
  try: apt install toy-driver-525

auto would take cpu: 1 × Toy CPU, priority 10; passed over: null (only when
  named), toy (blocked: the driver is too old: 470, and 525 is needed; apt
  install toy-driver-525)
probes: cpu 1.2 ms, null 0.0 ms
"""


def test_the_table(hwal: Hwal) -> None:
    assert hwal("devices") == Result(0, TABLE, "")


def test_what_a_named_device_takes(hwal: Hwal) -> None:
    result = hwal("devices", "--device", "null:3")
    assert result.out.startswith(TABLE.partition("auto would take")[0])
    assert "chosen: null: 3 × imaginary device, asked for by --device null:3" in result.out
    assert json.loads(hwal("devices", "--device", "cpu:0", "--json").out)["choice"]["target"] == {"backend": "cpu", "spec": "0"}
    failed = hwal("devices", "--device", "tpu")
    assert (failed.code, failed.out, failed.err.splitlines()[1]) == (2, "", "  where: --device tpu")


def test_the_document(hwal: Hwal, folder: Path) -> None:
    result = hwal("devices", "--json")
    document = json.loads(result.out)
    assert list(document) == ["host", "probes", "choice", "devices", "links"]
    assert document["choice"]["backend"] == "cpu"
    assert document["probes"][2] == {
        "backend": "toy",
        "state": "blocked",
        "reason": BLOCKED.reason,
        "hint": BLOCKED.hint,
        "ms": None,
        "notes": [],
        "unfit": [],
    }
    assert [(link["a"], link["b"], link["class"]) for link in document["links"]] == [
        (0, 1, "NULL"),
        (0, 2, "NULL"),
        (1, 2, "NULL"),
    ]
    (folder / "again.json").write_text(result.out, encoding="utf-8")
    assert hwal("devices", "--json", "--from", "again.json").out == result.out
    assert hwal("devices", "--from", "again.json").out == TABLE


def test_this_machine(hwal: Hwal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a document the backends are asked: there is a CPU, for these tests run on one."""
    monkeypatch.delenv("HWAL_TOPOLOGY")
    monkeypatch.setenv("HWAL_NULL_DEVICES", "4")
    document = json.loads(hwal("devices", "--json").out)
    assert {device["backend"] for device in document["devices"]} == {"cpu", "null"}
    assert len([link for link in document["links"] if link["backend"] == "null"]) == 6
    assert all(probe["ms"] is not None for probe in document["probes"])
    assert hwal("devices").code == 0


def test_a_machine_where_nothing_can_be_used(hwal: Hwal, folder: Path) -> None:
    (folder / "bare.json").write_text(replace(MACHINE, probes=(BLOCKED,)).to_json())
    result = hwal("devices", "--from", "bare.json")
    assert result.code == 0
    assert result.out.splitlines()[-2:] == [
        "auto would take nothing: no device can be used (toy: the driver is too old: 470,",
        "  and 525 is needed)",
    ]
    assert json.loads(hwal("devices", "--from", "bare.json", "--json").out)["choice"] is None


GPU = Probe(
    "toy",
    "ready",
    "two accelerators",
    devices=tuple(
        Device(
            "toy",
            i,
            name="Vendor Accelerator X9000 SXM 80GB HBM3 Special Edition",
            id=f"GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f{i}",
            memory_bytes=80 * 1024**3,
            numa=i,
            cores=tuple(range(i * 48, i * 48 + 48)),
            threads=48,
            native={"bf16": "sm_90", "fp16": "sm_90", "fp32": "sm_90"} if i else {},
        )
        for i in range(2)
    ),
    links=(Link(0, 1, "NV18", 450e9, True, "driver", "toy"),),
    notes=("persistence mode is off",),
)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_long_names_fit_the_width(width: int) -> None:
    machine = Machine(HostFacts(None, "linux", "x86_64"), (GPU,), Choice(Target(), "toy", GPU.devices, "2 × toys, priority 80"))
    lines = table(machine, None, width)
    assert max(map(len, lines)) <= width
    text = " ".join("\n".join(lines).split())
    for part in ["links NV18, 450 GB/s, p2p (from driver): 0-1", "note: persistence mode is off", "0-47", "48-95", "80.0 GiB"]:
        assert part in text
    assert "native precisions of 0: unknown" in text
    assert "native precisions of 1: bf16 (sm_90), fp16 (sm_90), fp32 (sm_90)" in text


def test_many_links_wrap() -> None:
    links = tuple(Link(a, b, "SYS", source="sysfs", backend="cpu") for a in range(9) for b in range(a + 1, 9))
    lines = table(Machine(MACHINE.host, (replace(CPU, links=links),)), "none", 80)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding(folder: Path, encoding: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    shown = subprocess.run([sys.executable, "-m", "hwal", "devices"], env=env, capture_output=True, check=True)
    assert ("1 x Toy CPU" if encoding == "ascii" else "1 × Toy CPU") in shown.stdout.decode(encoding)
    document = subprocess.run([sys.executable, "-m", "hwal", "devices", "--json"], env=env, capture_output=True, check=True)
    assert json.loads(document.stdout.decode(encoding))["choice"]["why"] == "1 × Toy CPU, priority 10"
    wrong = subprocess.run(
        [sys.executable, "-m", "hwal", "xyz…"], env={**env, "COLUMNS": "x"}, capture_output=True, check=False
    )
    assert (wrong.returncode, b"Traceback" in wrong.stderr) == (2, False)


def test_sizes_and_ranges() -> None:
    assert [size(n) for n in (None, 12, 2048, 5 * 1024**2, 3 * 1024**4)] == ["?", "12 B", "2.0 KiB", "5.0 MiB", "3.0 TiB"]
    assert [ranges(n) for n in ((), (3,), (0, 1, 2, 5, 7, 8))] == ["", "3", "0-2,5,7-8"]
