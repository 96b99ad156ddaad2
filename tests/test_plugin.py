"""A backend in a package of its own: found, shown, trained with; and what happens when one is broken or claims a name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def hwal(*arguments: str, site: Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`hwal …`, with the distributions in `site` installed beside it."""
    path = os.pathsep.join([str(site), str(ROOT), str(ROOT / "backends")])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **variables}
    command = [sys.executable, "-m", "hwal", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)


def probes(*arguments: str, site: Path, cwd: Path, **variables: str) -> dict[str, list[dict[str, Any]]]:
    """Backend -> its probes, as `hwal devices --json` tells them."""
    done = hwal("devices", "--json", *arguments, site=site, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for probe in json.loads(done.stdout)["probes"]:
        found.setdefault(probe["backend"], []).append(probe)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that examples/plugin was installed into."""
    site = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "install", *options, str(ROOT / "examples" / "plugin")]
    subprocess.run(command, check=True, timeout=120)
    return site


@pytest.fixture
def driver(tmp_path: Path) -> str:
    path = tmp_path / "toys"
    path.write_text("red car\nblue car\n", encoding="utf-8")
    return str(path)


def distribution(site: Path, name: str, backend: str, source: str) -> None:
    """A plug-in of one module, as pip would leave it."""
    (site / f"{name}-1.0.dist-info").mkdir(parents=True)
    (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[hwal.backends]\n{backend} = {name}:backend\n")
    (site / f"{name}.py").write_text(source)


@pytest.mark.slow
def test_an_installed_plug_in_is_found(installed: Path, tmp_path: Path, driver: str) -> None:
    toy = probes(site=installed, cwd=tmp_path, TOY_DRIVER=driver)["toy"]
    assert [(probe["state"], probe["reason"]) for probe in toy] == [("ready", f"2 in {driver}")]
    assert probes(site=installed, cwd=tmp_path)["toy"][0]["state"] == "absent"
    lost = probes(site=installed, cwd=tmp_path, TOY_DRIVER="/nowhere/toys")["toy"][0]
    assert (lost["state"], lost["hint"]) == ("blocked", "TOY_DRIVER=FILE, a file with a device a line")
    shown = hwal("devices", site=installed, cwd=tmp_path, TOY_DRIVER=driver)
    assert "red car" in shown.stdout and "blue car" in shown.stdout
    wrong = hwal("train", "--device", "toyy", site=installed, cwd=tmp_path)
    assert wrong.returncode == 2 and "did you mean toy?" in wrong.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_an_installed_plug_in_is_trained_with(installed: Path, tmp_path: Path, driver: str, processes: int) -> None:
    flags = ["--device", "toy:1" if processes == 1 else "toy", "-n", str(processes), "--out", "run", "--steps", "10"]
    done = hwal("train", *flags, site=installed, cwd=tmp_path, TOY_DRIVER=driver)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.2
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["backend"] == "toy" and len(plan["processes"]) == processes
    assert list((tmp_path / "run" / "checkpoints").glob("step-*/model.safetensors"))


@pytest.mark.slow
def test_the_plug_ins_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    """Its test file inherits hwal's two suites, as a third party's would. Of the runtime's a few: cpu runs them all."""
    path = os.pathsep.join([str(installed), str(ROOT), str(ROOT / "backends")])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    folder = ROOT / "examples" / "plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder / "tests")]
    command += ["-k", "Probe or see_each_other or loop_by_hand or metrics"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_broken_plug_in_is_blocked_and_the_rest_works(tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "bad_import", "bad", "import a_driver_that_is_not_installed\n")
    distribution(site, "bad_object", "odd", "backend = 42\n")
    found = probes(site=site, cwd=tmp_path)
    assert found["bad"][0]["state"] == found["odd"][0]["state"] == "blocked"
    assert "ModuleNotFoundError: No module named 'a_driver_that_is_not_installed'" in found["bad"][0]["reason"]
    assert "bad_import-1.0" in found["bad"][0]["reason"]
    assert "is a int, not a hwal.backend.Backend" in found["odd"][0]["reason"]
    assert found["cpu"][0]["state"] == "ready"
    shown = hwal("devices", site=site, cwd=tmp_path)
    assert shown.returncode == 0
    assert "blocked" in shown.stdout and "a_driver_that_is_not_installed" in shown.stdout
    asked = hwal("train", "--device", "bad", site=site, cwd=tmp_path)
    assert asked.returncode == 2
    assert "a_driver_that_is_not_installed" in asked.stderr and "Traceback" not in asked.stderr


@pytest.mark.slow
def test_a_plug_in_that_claims_a_built_ins_name_is_told_and_not_used(tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "usurper", "cpu", "raise SystemExit('the built-in should have won')\n")
    cpu = probes(site=site, cwd=tmp_path)["cpu"]
    assert sorted(probe["state"] for probe in cpu) == ["blocked", "ready"]
    blocked = next(probe for probe in cpu if probe["state"] == "blocked")
    assert blocked["reason"] == "usurper-1.0 offers a backend named 'cpu', which is hwal's"
    done = hwal("train", "--dry-run", "--device", "cpu", site=site, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
