"""Writes the tables of README.md from the code; with --check, fails when they are not what the code says.

A table stands between `<!-- generated: NAME -->` and `<!-- /generated -->`; NAME is one of TABLES.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from hwal import cli, env  # noqa: E402
from hwal.cli import flags  # noqa: E402
from hwal.host import RecordedHost, Recording  # noqa: E402
from hwal.lint.catalog import rules  # noqa: E402
from hwal.plan.later import is_later  # noqa: E402
from hwal.registry import BUILT_IN, Registry  # noqa: E402

BLOCK = re.compile(r"<!-- generated: (?P<name>[a-z-]+) -->\n(?P<body>.*?)<!-- /generated -->", re.DOTALL)

VERIFIED: Mapping[str, str] = {
    "cuda": "its probe on recorded hosts, and against a driver's library that tests build; no GPU yet",
    "rocm": "its probe on recorded hosts; no GPU yet",
    "cpu": "trained on in every run of ci/check",
    "tpu": "`tpu:cpu` (XLA's CPU platform) trained on in every run of ci/check; its probe on recorded hosts; no chip yet",
    "null": "trained on in every run of ci/check (it computes on the CPU)",
}
"""Backend -> on what it really ran; a built-in one must say."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [list(head), *(list(row) for row in rows)]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    cells.insert(1, ["---"] * len(cells[0]))
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


def backends() -> str:
    registry = Registry(RecordedHost(Recording()))
    rows = []
    for name in BUILT_IN:
        backend = registry.load(name)
        caps = backend.caps
        talk = caps.collectives or "one process"
        auto = "only when named" if backend.priority is None else f"priority {backend.priority}"
        rows.append(
            (f"`{name}`", ", ".join(caps.frameworks), talk, auto, f"`pip install '.[{backend.extra}]'`", VERIFIED[name])
        )
    return table(("--device", "frameworks", "ranks talk over", "auto takes it", "install", "verified"), rows)


def train_flags() -> str:
    variables = {setting.flag: setting.variable for setting in env.SETTINGS}
    rows = []
    for group in flags.groups().values():
        for row in group:
            spellings = [*(short for short, long in flags.SHORT.items() if long == row.flag), row.flag]
            flag = ", ".join(f"`{text}`" for text in spellings) + (f" `{row.metavar}`" if row.metavar else "")
            later = " (in a later version)" if is_later(row.field) else ""
            rows.append((flag, f"`{variables[row.flag]}`" if row.flag in variables else "", row.help + later))
    return table(("flag", "variable", "meaning"), rows)


def variables() -> str:
    later = {row.variable for row in env.SETTINGS if is_later(row.field)}
    rows = ((f"`{name}`", about + " (in a later version)" * (name in later)) for name, about in env.variables().items())
    return table(("variable", "meaning"), rows)


def exit_codes() -> str:
    """As `hwal --help` tells them."""
    section = cli.HELP.partition("exit codes:\n")[2].partition("\n\n")[0]
    return table(("exit code", "meaning"), re.findall(r"^ +(\d+) +(.+)$", section, re.MULTILINE))


def lint_rules() -> str:
    rows = []
    for rule in rules():
        tpu, cpu = rule.severity_on("tpu"), rule.severity_on("cpu")
        severity = tpu if tpu == cpu else f"{tpu} on tpu, else {cpu}"
        rows.append((f"`{rule.code}`", rule.name, severity, rule.fix or "", " ".join(rule.section("What").split())))
    return table(("code", "name", "severity", "fix", "what"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "backends": backends,
    "train-flags": train_flags,
    "variables": variables,
    "exit-codes": exit_codes,
    "lint-rules": lint_rules,
}


def rewritten(text: str) -> str:
    """The text with every table as the code has it now. Raises ValueError for a table of unknown name, and for a lost one."""
    names = [match["name"] for match in BLOCK.finditer(text)]
    if unknown := sorted(set(names) - set(TABLES)):
        raise ValueError(f"no such table: {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if missing := sorted(set(TABLES) - set(names)):
        raise ValueError(f"it lacks the block <!-- generated: {missing[0]} --> … <!-- /generated -->")
    return BLOCK.sub(lambda match: f"<!-- generated: {match['name']} -->\n{TABLES[match['name']]()}<!-- /generated -->", text)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not README.exists():
        print("README.md is missing", file=sys.stderr)
        return 1
    text = README.read_text(encoding="utf-8")
    try:
        now = rewritten(text)
    except ValueError as error:
        print(f"README.md: {error}", file=sys.stderr)
        return 1
    if now == text:
        print("README.md says what the code says")
        return 0
    if arguments == ["--check"]:
        print("README.md's tables are not what the code says: python ci/docs.py", file=sys.stderr)
        return 1
    README.write_text(now, encoding="utf-8")
    print("README.md rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
