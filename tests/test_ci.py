"""The checks' own programs: the tables of README.md, the environment's name, what a run must have left."""

from __future__ import annotations

import json
import math
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def program(name: str) -> Any:
    return runpy.run_path(str(ROOT / "ci" / f"{name}.py"), run_name=name)


def readme(*names: str) -> str:
    return "# title\n" + "".join(f"\n<!-- generated: {name} -->\nstale\n<!-- /generated -->\n" for name in names)


def test_a_stale_table_is_rewritten_once() -> None:
    docs = program("docs")
    text = docs["rewritten"](readme(*docs["TABLES"]))
    assert "stale" not in text and text.startswith("# title\n")
    assert docs["rewritten"](text) == text
    assert "| `cpu` |" in text and "`--precision` `P`" in text and "`HWAL_PRECISION`" in text
    assert [line for line in text.splitlines() if line.startswith("| 75 |")]


def test_check_fails_on_a_stale_a_lost_and_an_unknown_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = program("docs")
    main, path = docs["main"], tmp_path / "README.md"
    main.__globals__["README"] = path
    names = list(docs["TABLES"])
    for text, said in (
        (None, "is missing"),
        (readme(*names), "are not what the code says"),
        (readme(*names[1:]), f"lacks the block <!-- generated: {names[0]} -->"),
        (readme(*names, "nonsense"), "no such table: nonsense"),
    ):
        if text is not None:
            path.write_text(text)
        assert main(["--check"]) == 1
        assert said in capsys.readouterr().err
    path.write_text(readme(*names))
    assert main([]) == 0 and main(["--check"]) == 0


def test_an_environments_name_changes_with_its_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = program("environment")
    pins = tmp_path / "main.txt"
    pins.write_text("torch==2.13.0\n")
    before = environment["name_of"](pins)
    pins.write_text("torch==2.13.1\n")
    assert before.startswith("main-3.") and environment["name_of"](pins) != before
    monkeypatch.delenv("HWAL_ENVS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment["folder_of_environments"]() == tmp_path / "hwal" / "envs"
    monkeypatch.setenv("HWAL_ENVS", str(tmp_path / "mine"))
    assert environment["folder_of_environments"]() == tmp_path / "mine"


@pytest.mark.parametrize(("name", "torch"), [("main", "2.13.0"), ("xla", "2.8.0")])
def test_pins_are_exact(name: str, torch: str) -> None:
    lines = (ROOT / "ci" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert f"torch=={torch}" in lines
    for line in lines:
        assert not line or line.startswith("#") or line.count("==") == 1, line


@pytest.mark.parametrize(
    ("losses", "fine"), [([3.0] * 5 + [1.0] * 5, True), ([3.0] * 10, False), ([1.0] * 5 + [3.0] * 5, False)]
)
def test_trained_wants_falling_losses(tmp_path: Path, losses: list[float], fine: bool) -> None:
    trained = program("trained")
    trained["main"].__globals__["generated"] = lambda _: 8
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    lines = [json.dumps({"step": i + 1, "loss": loss}) + "\n" for i, loss in enumerate(losses)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert trained["main"]([str(tmp_path), "10"]) == (0 if fine else 1)
    assert trained["main"]([str(tmp_path), "11"]) == 1


def stand_in(gpu: dict[str, Any], devices: int, fails: str, bent: tuple[str, float], asked: list[str]) -> Any:
    """In the place of ci/gpu.py's `run`: a part that names `fails` fails, and losses of one that names `bent` are others."""

    def run(part: Any, out: Path) -> Any:
        line = " ".join(part.arguments)
        asked.append(line)
        if part.name == "devices":
            found = [{"backend": "rocm"}] * devices + [{"backend": "cpu"}]
            (out / "devices.out").write_text(json.dumps({"devices": found}))
        if " train " in line and "--steps" in line:
            run_dir, steps = Path(line.partition("--out ")[2].split()[0]), int(line.partition("--steps ")[2].split()[0])
            run_dir.mkdir(exist_ok=True)
            lines = [{"step": i + 1, "loss": bent[1] if bent[0] and bent[0] in line else 5 - 0.1 * i} for i in range(steps)]
            (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return gpu["Outcome"](part.name, not (fails and fails in line), "it ran")

    return run


@pytest.mark.parametrize(
    ("devices", "fails", "bent", "failed"),
    [
        (16, "", ("", 0), []),
        (1, "", ("", 0), []),
        (0, "", ("", 0), ["count"]),
        (8, "doctor", ("", 0), ["doctor"]),
        (8, "devices order", ("", 0), ["order"]),
        (8, "devices --json", ("", 0), ["devices"]),
        (8, "--strategy fsdp:full ", ("", 0), ["fsdp"]),
        (8, "selftest", ("", 0), ["suite"]),
        (8, "", ("--strategy ddp", 5), ["curve of ddp"]),
        (8, "", ("--strategy ddp", math.nan), ["curve of ddp"]),
        (8, "", ("--framework keras", 5), ["curve of keras"]),
        (8, "", ("--steps 60", 5), ["curve of run"]),
        (1, "", ("--device cpu", 5.01), ["curve of host"]),
    ],
)
def test_the_program_for_a_real_gpu(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    devices: int,
    fails: str,
    bent: tuple[str, float],
    failed: list[str],
) -> None:
    """Its parts, limits and comparisons: each part runs, whatever the others did, and each that fails counts."""
    out, asked = tmp_path / "out", list[str]()
    gpu = program("gpu")
    main = gpu["main"]
    main.__globals__.update(run=stand_in(gpu, devices, fails, bent, asked), find_spec=lambda name: name)
    assert main(["rocm", str(out)]) == (1 if failed else 0)
    report = json.loads((out / "report.json").read_text())
    assert report["failed"] == failed and bool(report["left_out"]) == (devices < 2), capsys.readouterr().out
    assert len(asked) == (14 if devices > 1 else 11 if devices else 1) and not any("--device cuda" in line for line in asked)
    assert {"curve of ddp", "curve of fsdp", "curve of offload"} <= {each["name"] for each in report["parts"]} or devices < 2
    assert all("-n 8" in line for line in asked if "--strategy" in line)
    assert 10 + sum(part.limit for part in gpu["parts"]("rocm", out, devices, True)) == 420, "seven minutes in all"
    assert main(["rocm", str(out)]) == 2 and "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"step": 2, "loss": 4.5}', [5.0, 4.5]),
        ('{"step": 2, "loss": null}', []),
        ('{"step": 2, "loss": "much"}', []),
        ('{"step": 2, "loss": [1]}', []),
        ('{"step": 2}', []),
        ('{"loss": 4.5}', []),
        ('{"step": 3, "loss": 4.5}', []),
        ("[2, 4.5]", []),
        ('{"step": 2, "lo', []),
    ],
)
def test_losses_that_a_run_has_not_told_are_none(tmp_path: Path, line: str, found: list[float]) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 5}}\n{line}\n')
    assert program("gpu")["losses"](tmp_path) == found


def test_what_ends_a_part_and_where_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = program("gpu")
    for code, limit, said in (
        ("import time; time.sleep(600)", 0, "ended after 0 s"),
        ("print(1); raise SystemExit(3)", 60, "exit code 3"),
    ):
        outcome = gpu["run"](gpu["Part"]("part", limit, ("-IS", "-c", code)), tmp_path)
        assert not outcome.fine and outcome.said == said
    assert (tmp_path / "part.out").read_text() == "1\n"
    monkeypatch.chdir(tmp_path)
    assert [gpu["fresh"](None).name for _ in range(3)] == ["gpu-report", "gpu-report-2", "gpu-report-3"]


def test_a_signal_ends_the_part_that_runs_and_the_report_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all that the part has started: a pipe has an end once the last of them that could write to it is gone."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "cuda", str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "ci" / "gpu.py"), run_name="__main__")
    assert [handlers[each].__name__ for each in (signal.SIGINT, signal.SIGTERM)] == ["stop", "stop"]
    gpu, pipe, out = program("gpu"), tmp_path / "pipe", tmp_path / "out"
    gpu["main"].__globals__["find_spec"] = lambda name: name
    os.mkfifo(pipe)
    sleeper = "import time; print('here', flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-ISc', {sleeper!r}], stdout=open({str(pipe)!r}, 'w'))"
    run, readers = gpu["run"], list[Any]()

    class Signalled(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                readers.append(pipe.open())  # waits until the part's child has the other end
                assert readers[0].readline() == "here\n"
                gpu["stop"](signal.SIGTERM, None)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    gpu["main"].__globals__["run"] = lambda part, out: run(part._replace(arguments=("-ISc", code)), out)
    assert gpu["main"](["cuda", str(out)]) == 128 + signal.SIGTERM
    with readers[0]:
        assert readers[0].read() == ""
    report = json.loads((out / "report.json").read_text())
    assert (report["failed"], report["left_out"]) == (["stopped"], []) and "by SIGTERM" in report["parts"][-1]["said"], (
        capsys.readouterr().out
    )
