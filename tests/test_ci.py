"""The checks' own programs: the tables of README.md, the environment's name, what a run must have left."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
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


STAND_IN = """#!/bin/sh
echo "$@" >>"$SEEN"
case "$*" in
    *"print(sum("*) echo "$DEVICES" ;;
    *"$FAILS"*) echo "it went wrong"; exit 3 ;;
esac
"""


@pytest.mark.skipif(os.name == "nt", reason="sh runs the script")
def test_the_script_for_a_real_gpu(tmp_path: Path) -> None:
    """Its parts and limits, by a Python that only writes down what it was asked: each runs, whatever the others did."""
    python, seen = tmp_path / "python", tmp_path / "seen"
    python.write_text(STAND_IN, encoding="utf-8")
    python.chmod(0o755)
    environ = {
        **os.environ,
        "PYTHON": str(python),
        "SEEN": str(seen),
        "OUT": str(tmp_path / "out"),
        "FAILS": "no such part",
        "DEVICES": "8",
    }
    script = ["sh", str(ROOT / "ci" / "gpu"), "rocm"]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = seen.read_text(encoding="utf-8")
    for words in (
        "devices --json",
        "doctor --json",
        "--dry-run",
        "ddp",
        "fsdp:full ",
        "+offload",
        "--resume",
        "selftest --device rocm",
    ):
        assert words in asked, words
    assert "--device cuda" not in asked
    source = (ROOT / "ci" / "gpu").read_text(encoding="utf-8")
    limits = [int(limit) for limit in re.findall(r"^ *(?:part|train) \w+ (\d+) ", source, re.MULTILINE)]
    assert len(limits) == 10 and sum(limits) <= 480, "eight minutes in all"
    seen.unlink()
    failing = subprocess.run(script, env={**environ, "FAILS": "--strategy ddp"}, capture_output=True, text=True, check=False)
    assert failing.returncode == 1 and "ddp: exit 3" in failing.stdout and "it went wrong" in failing.stdout
    assert seen.read_text(encoding="utf-8") == asked, "the rest ran all the same"
    alone = subprocess.run(script, env={**environ, "DEVICES": "1"}, capture_output=True, text=True, check=False)
    assert alone.returncode == 0 and "ddp, fsdp, offload: 1 rocm device" in alone.stdout
