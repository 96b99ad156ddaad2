"""Reports: findings as text, JSON, GitHub's commands, SARIF, a table of counts, a checklist, the page of one rule."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hwal import __version__
from hwal.lint.catalog import rules
from hwal.lint.diagnostic import Diagnostic, Rule, Target
from hwal.lint.run import Result

Lines = Callable[[Diagnostic], str]
"""The line of text that a finding stands on."""

LEVELS: Mapping[str, str] = {"error": "error", "warning": "warning", "info": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def place(found: Diagnostic) -> str:
    cell = f"cell {found.cell}:" if found.cell is not None else ""
    return f"{found.path}:{cell}{found.line}:{found.column}"


def failures(result: Result) -> list[str]:
    """A line for each file that could not be linted: `path:line: why`, `path: why` where there is no line to it."""
    lines = []
    for error in result.errors:
        cell = f"cell {error.cell}:" if error.cell is not None else ""
        line = f":{cell}{error.line}" if error.line is not None else ""
        lines.append(f"{error.path}{line}: {error.message}")
    return lines


def text(result: Result, line_of: Lines) -> str:
    """As ruff prints: where, code, message; the line; a caret under what is meant; what to do."""
    blocks = []
    for found in result.findings:
        mark = f" [*{'' if found.fix.safety == 'safe' else ' unsafe'}]" if found.fix else ""
        lines = [f"{place(found)}: {found.code} {found.severity}: {found.message}{mark}"]
        source = line_of(found).replace("\t", " ")
        if source.strip():
            width = len(str(found.line))
            end = found.end_column if found.end_line == found.line else len(source) + 1
            length = max(1, min(end, len(source) + 1) - found.column)
            lines += [
                f"{' ' * width} |",
                f"{found.line} | {source}",
                f"{' ' * width} | {' ' * (found.column - 1)}{'^' * length}",
            ]
        lines.append(f"  help: {found.help}")
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *failures(result), summary(result)])


def summary(result: Result) -> str:
    """`2 errors, 1 warning in 3 files; 1 can be fixed with --fix`."""
    counts = Counter(found.severity for found in result.findings)
    fixable = Counter(found.fix.safety for found in result.findings if found.fix)
    parts = [count(counts[kind], kind) for kind in ("error", "warning", "info") if counts[kind]]
    said = (
        f"{', '.join(parts)} in {count(result.files, 'file')}" if parts else f"nothing found in {count(result.files, 'file')}"
    )
    if fixable["safe"]:
        said += f"; {fixable['safe']} can be fixed with --fix"
    if fixable["unsafe"]:
        said += f"; {fixable['unsafe']} with --fix --unsafe-fixes"
    return said + (f"; {count(len(result.errors), 'file')} could not be linted" if result.errors else "")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 or noun == 'info' else 's'}"


def as_json(result: Result) -> str:
    """One document: findings, the number of files that were linted, and the files that could not be."""
    document = {
        "findings": [found.to_dict() for found in result.findings],
        "files": result.files,
        "errors": [{key: told for key, told in error._asdict().items() if told is not None} for error in result.errors],
    }
    return json.dumps(document, indent=2, ensure_ascii=True)


def github(result: Result) -> str:
    """Workflow commands: each becomes a note beside its line."""
    lines = []
    for found in result.findings:
        level = "notice" if found.severity == "info" else found.severity
        place = f"file={_property(found.path)},line={found.line},endLine={found.end_line},col={found.column}"
        message = _data(f"{found.message}\n{found.help}")
        lines.append(f"::{level} {place},title={_property(f'{found.code} {found.name}')}::{message}")
    for error in result.errors:
        line = f",line={error.line}" if error.line is not None and error.cell is None else ""
        cell = f"cell {error.cell}, line {error.line}: " if error.cell is not None else ""
        lines.append(f"::error file={_property(error.path)}{line}::{_data(cell + error.message)}")
    return "\n".join(lines)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def sarif(result: Result) -> str:
    """SARIF 2.1.0, as code scanners read it."""
    used = sorted({found.code for found in result.findings})
    known = {rule.code: rule for rule in rules()}
    descriptions: list[dict[str, Any]] = []
    for code in used:
        rule = known.get(code)
        name = rule.name if rule else "unused-noqa"
        about = " ".join((rule.section("What") if rule else "A noqa comment that takes nothing away.").split())
        descriptions.append({"id": code, "name": name, "shortDescription": {"text": about}})
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "hwal lint", "version": __version__, "rules": descriptions}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(found, used.index(found.code)) for found in result.findings],
        "invocations": [
            {
                "executionSuccessful": not result.errors,
                "toolExecutionNotifications": [{"level": "error", "message": {"text": line}} for line in failures(result)],
            }
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _sarif_result(found: Diagnostic, index: int) -> dict[str, Any]:
    region = {
        "startLine": found.line,
        "startColumn": found.column,
        "endLine": found.end_line,
        "endColumn": max(found.end_column, found.column if found.end_line == found.line else 1),
    }
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(found.path)}, "region": region}}
    if found.cell is not None:  # of a notebook, lines count from the cell
        location["logicalLocations"] = [{"name": f"cell {found.cell}", "kind": "module"}]
    return {
        "ruleId": found.code,
        "ruleIndex": index,
        "level": LEVELS[found.severity],
        "message": {"text": f"{found.message}. {found.help}"},
        "locations": [location],
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(os.fsencode(path.replace("\\", "/")))


def statistics(result: Result) -> str:
    """How often each rule was broken."""
    counts = Counter((found.code, found.name, found.severity) for found in result.findings)
    rows = [f"{number:>6}  {code}  {severity:<8}{name}" for (code, name, severity), number in counts.most_common()]
    return "\n".join([*rows, *failures(result), summary(result)])


def checklist(result: Result, target: Target) -> str:
    """Every rule, and whether these files keep it."""
    counts = Counter(found.code for found in result.findings)
    lines = [f"for {target}:"]
    for rule in rules():
        broken = counts[rule.code]
        lines.append(f"  [{' ' if broken else 'x'}] {rule.code} {rule.name}{f': {broken}' if broken else ''}")
    return "\n".join([*lines, *failures(result), summary(result)])


def explain(rule: Rule) -> str:
    """One rule's page, from its docstring."""
    if isinstance(rule.severity, str):
        levels: str = rule.severity
    else:
        levels = ", ".join(f"{level} on {target}" for target, level in rule.severity.items())
    fix = f"{rule.fix} fix" if rule.fix else "no fix"
    body = rule.doc.partition("\n")[2].strip()
    return f"{rule.code} {rule.name} ({levels}; {fix})\n\n{body}"
