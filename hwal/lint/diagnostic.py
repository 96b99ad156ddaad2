"""What the linter says: Diagnostic, with its Fix, and the Rule that found it. All frozen."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
Target = Literal["tpu", "gpu", "cpu"]
TARGETS: tuple[Target, ...] = ("tpu", "gpu", "cpu")
RANK: Mapping[str, int] = {"error": 2, "warning": 1, "info": 0}


class Edit(NamedTuple):
    """Replaces the text from (line, column) to (end_line, end_column): lines from 1, columns in characters from 0."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Fix:
    """Edits of one file that take a finding away. `imports` are lines that the file needs besides. A fix is safe when eager
    results stay the same in every case, else unsafe."""

    safety: Literal["safe", "unsafe"]
    about: str
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnostic:
    """One finding. `line` and `column` count from 1, columns in characters; `end_line` is the last line of what is meant."""

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: Severity
    message: str
    help: str
    fix: Fix | None = None
    cell: int | None = None

    def to_dict(self) -> dict[str, Any]:
        fix = None
        if self.fix:
            fix = {"safety": self.fix.safety, "about": self.fix.about, "edits": [edit._asdict() for edit in self.fix.edits]}
        keys = ("code", "name", "path", "line", "column", "end_line", "severity", "message", "help")
        found = {key: getattr(self, key) for key in keys} | {"fix": fix}
        return found | ({"cell": self.cell} if self.cell is not None else {})


class Finding(NamedTuple):
    """What a rule yields: where, why, what to do. Without a severity, one for all targets or one each, it has the rule's."""

    node: ast.AST
    message: str
    help: str
    severity: Severity | Mapping[str, Severity] | None = None
    fix: Fix | None = None


@dataclass(frozen=True)
class Rule:
    """One rule: the docstring of its file says what, why, bad, good, and how safe its fix is.

    `severity` is one for all targets, or one per target. `check` gets what `scope` names: a traced function (`trace`) or a
    whole file (`module`).
    """

    code: str
    name: str
    severity: Severity | Mapping[str, Severity]
    check: Callable[[Any], Iterator[Finding]]
    doc: str
    scope: Literal["trace", "module"] = "trace"
    fix: Literal["safe", "unsafe"] | None = None

    def severity_on(self, target: Target) -> Severity:
        return self.severity if isinstance(self.severity, str) else self.severity[target]

    def section(self, title: str) -> str:
        """One section of the docstring (`What`, `Why`, `Bad`, `Good`, `Fix safety`), its indentation taken off."""
        found = re.search(rf"^{title}:(.*?)(?=^[A-Z][a-z ]+:|\Z)", self.doc, re.MULTILINE | re.DOTALL)
        lines = found[1].rstrip().split("\n") if found else []
        text = "\n".join(line.removeprefix("    ") for line in lines)
        return text.strip("\n").strip(" ") if text.strip() else ""


def tpu_error(elsewhere: Severity = "warning") -> dict[str, Severity]:
    """An error for tpu and something milder elsewhere."""
    return {"tpu": "error", "gpu": elsewhere, "cpu": elsewhere}
