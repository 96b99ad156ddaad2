"""Programs whose fate under XLA was measured: how the files in tests/lint/truth are read and written."""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = re.compile(
    r"^#: (?P<name>[^;]+); (?P<how>call|random|fresh|fit) (?P<call>.*?)(?:; tpu (?P<tpu>\w+); cpu (?P<cpu>\w+))?$"
)
FILE = re.compile(r"^#: file (?P<name>\w+\.py)$", re.MULTILINE)
CULPRIT = re.compile(r"[ \t]*#!$", re.MULTILINE)

BAD = {
    "tpu": ("trace_error", "compile_error", "value_baked", "silent_wrong", "keras_disables_jit"),
    "cpu": ("trace_error", "compile_error", "silent_wrong"),
}
"""Target -> the verdicts that are an error there; tests/bench/lint_measure.py says what they mean."""


COUNTED = re.compile(r"^#: (?P<name>[^;]+)(?:; compilations (?P<compilations>\d+); host reads (?P<reads>\d+))?$")


class Step(NamedTuple):
    """A training loop for torch_xla: what six steps after the first two compile, and read on the host."""

    name: str
    text: str
    compilations: int | None = None
    reads: int | None = None


def parse_steps(text: str) -> list[Step]:
    """The programs of a file of steps. Raises ValueError for a header that is none."""
    found = []
    for part in re.split(r"^(?=#: )", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        match = COUNTED.match(head)
        if match is None:
            raise ValueError(f"no header: {head}")
        counts = (int(match[name]) if match[name] else None for name in ("compilations", "reads"))
        found.append(Step(match["name"], body.strip("\n") + "\n", *counts))
    return found


def render_steps(steps: list[Step]) -> str:
    """The text of a file of steps."""
    return "\n".join(f"#: {one.name}; compilations {one.compilations}; host reads {one.reads}\n{one.text}" for one in steps)


class Program(NamedTuple):
    """`how`: call, random (its results are not compared), fresh (a function that keeps variables), or fit. `text` has its
    culprit marks. `verdicts`: target -> verdict, None where it was not measured yet."""

    name: str
    how: str
    call: str
    text: str
    verdicts: dict[str, str] | None = None

    @property
    def random(self) -> bool:
        return self.how == "random"

    @property
    def files(self) -> dict[str, str]:
        """File name -> text without marks; the first is program.py."""
        parts = FILE.split(CULPRIT.sub("", self.text))
        return {"program.py": parts[0]} | {name: text.lstrip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}

    @property
    def culprits(self) -> set[tuple[str, int]]:
        """The file and line of each mark."""
        parts = FILE.split(self.text)
        texts = {"program.py": parts[0]} | {n: t.lstrip("\n") for n, t in zip(parts[1::2], parts[2::2], strict=True)}
        return {
            (name, number)
            for name, text in texts.items()
            for number, line in enumerate(text.split("\n"), 1)
            if CULPRIT.search(line)
        }


def parse(text: str) -> list[Program]:
    """The programs of a truth file. Raises ValueError for a header that is none."""
    found: list[Program] = []
    for part in re.split(r"^(?=#: (?!file ))", text, flags=re.MULTILINE):
        if not part.strip():
            continue
        head, _, body = part.partition("\n")
        match = HEADER.match(head)
        if match is None:
            raise ValueError(f"no header: {head}")
        verdicts = {"tpu": match["tpu"], "cpu": match["cpu"]} if match["tpu"] else None
        found.append(Program(match["name"], match["how"], match["call"], body.strip("\n") + "\n", verdicts))
    return found


def render(programs: list[Program]) -> str:
    """A truth file's text."""
    parts = []
    for one in programs:
        verdicts = f"; tpu {one.verdicts['tpu']}; cpu {one.verdicts['cpu']}" if one.verdicts else ""
        parts.append(f"#: {one.name}; {one.how} {one.call}{verdicts}\n{one.text}")
    return "\n".join(parts)
