"""The linter on programs whose fate under XLA was measured: tests/bench/lint_measure.py measures those of tests/lint/truth,
tests/bench/lint_ptx.py those of truth/steps.torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwal.lint import check
from hwal.lint.diagnostic import Diagnostic
from hwal.lint.engine import Settings, check_sources
from hwal.lint.source import read
from tests.lint.programs import BAD, Program, parse, parse_steps, render, render_steps

FILES = sorted((Path(__file__).parent / "truth").glob("*.txt"))
STEPS = Path(__file__).parent / "truth" / "steps.torch"
PROGRAMS = [one for path in FILES for one in parse(path.read_text(encoding="utf-8"))]

KNOWN: dict[str, set[str]] = {
    "tpu": {
        "mixture of experts by their members",  # enumerates an argument of which nothing says that it is no list
    },
    "cpu": {
        "mixture of experts by their members",
        "shuffle",  # a defect of XLA:CPU in TensorFlow 2.21
        "audio model with stft and dynamic frames",  # a step that XLA:CPU cannot bake, though it is an argument
    },
}
"""Programs that are judged wrongly, and why; one that is judged rightly must go."""


def errors(program: Program, target: str) -> list[Diagnostic]:
    sources = [read(name, text, name.removesuffix(".py")) for name, text in program.files.items()]
    found = check_sources(sources, Settings("tpu" if target == "tpu" else "cpu"))
    return [one for one in found if one.severity == "error"]


@pytest.mark.parametrize("target", ["tpu", "cpu"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_fails_is_found_and_nothing_else(path: Path, target: str) -> None:
    wrong = set()
    for program in parse(path.read_text(encoding="utf-8")):
        assert program.verdicts, f"{program.name} was not measured"
        if bool(errors(program, target)) != (program.verdicts[target] in BAD[target]):
            wrong.add(program.name)
    assert wrong == KNOWN[target] & {one.name for one in parse(path.read_text(encoding="utf-8"))}


def test_errors_stand_on_the_lines_that_were_named() -> None:
    elsewhere = []
    for program in PROGRAMS:
        found = {(one.path, one.line) for one in errors(program, "tpu")}
        if found and program.culprits and not found & program.culprits:
            elsewhere.append(program.name)
    assert elsewhere == []


def test_what_costs_in_a_step_of_torch_xla_is_told_and_nothing_else() -> None:
    wrong = []
    text = STEPS.read_text(encoding="utf-8")
    for step in parse_steps(text):
        assert step.compilations is not None and step.reads is not None, f"{step.name} was not counted"
        if bool(check(step.text, select=("PTX",))) != bool(step.compilations or step.reads):
            wrong.append(step.name)
    assert wrong == []
    assert render_steps(parse_steps(text)) == text


def test_programs_are_written_as_they_are_read() -> None:
    assert len({one.name for one in PROGRAMS}) == len(PROGRAMS) >= 150
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert render(parse(text)) == text
