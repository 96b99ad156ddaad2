"""`hwal lint`: what in a program XLA will not compile, or compile again and again, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hwal.cli import show, tell
from hwal.cli.parser import Exit, Parser
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OutputError, UsageError
from hwal.lint import baseline, fixing, report
from hwal.lint import cache as stored
from hwal.lint.catalog import check_codes, rule, rules
from hwal.lint.config import Config, find, version
from hwal.lint.diagnostic import TARGETS, Diagnostic
from hwal.lint.discover import Unreadable, files, read_text
from hwal.lint.engine import Settings
from hwal.lint.run import Result, lint

EPILOG = """\
exit codes: 0 clean, 1 findings, 2 could not run, or not on every file: one is unreadable or no Python

examples:
  hwal lint train.py                          for a TPU, which is the strictest
  hwal lint --target gpu src                  for XLA on GPUs
  hwal lint --fix --diff src                  what the safe fixes would change
  hwal lint --explain XLA202                  one rule, with a bad and a good example
  hwal lint --write-baseline old.json src     an old code base: tell of new findings alone …
  hwal lint --baseline old.json src           … from now on

a line that is right as it is:  x = tf.zeros([n])  # noqa: XLA202
"""
FORMATS = ("text", "json", "github", "sarif")


def parser() -> Parser:
    """The flags of `hwal lint`."""
    made = Parser(
        "lint", "What XLA will not compile, or compiles again and again, before anything runs.", "[flags] PATHS", EPILOG
    )
    made.add_argument("paths", nargs="*", metavar="PATHS", help="files, folders, notebooks (default: this folder)")
    made.add_argument("--target", choices=TARGETS, help="what the code is to run on (default tpu)")
    made.add_argument("--select", metavar="CODES", help="only these rules, by code or its beginning: XLA,PTX6")
    made.add_argument("--ignore", metavar="CODES", help="not these")
    made.add_argument("--level", choices=("error", "warning", "info"), default="info", help="the mildest findings to tell")
    made.add_argument("--format", choices=FORMATS, default="text", help="how findings are printed")
    made.add_argument("--fix", action="store_true", help="apply fixes that keep eager results the same")
    made.add_argument("--unsafe-fixes", action="store_true", help="with --fix or --diff: those that may change results, too")
    made.add_argument("--diff", action="store_true", help="print what --fix would change, and change nothing")
    made.add_argument("--explain", metavar="CODE", help="print a rule's page; `all` for all")
    made.add_argument("--statistics", action="store_true", help="print counts by rule")
    made.add_argument("--checklist", action="store_true", help="print every rule and whether it is kept")
    made.add_argument("--baseline", metavar="FILE", help="findings to leave out")
    made.add_argument("--write-baseline", metavar="FILE", help="write all findings as a baseline")
    made.add_argument("--tf-version", metavar="V", help="TensorFlow's version (before 2.16, tf.keras is Keras 2)")
    made.add_argument("--no-config", action="store_true", help="do not read [tool.hwal.lint] of pyproject.toml")
    made.add_argument("--no-cache", action="store_true", help="do not use an earlier run's result")
    made.add_argument("--jobs", metavar="N", type=int, help="processes (default: one a core)")
    return made


def main(argv: Sequence[str]) -> int:
    try:
        return _main(argv)
    except OutputError as error:  # 1 would say that there are findings
        error.exit_code = EXIT_USAGE
        raise


def _main(argv: Sequence[str]) -> int:
    try:
        given = parser().parse_args(list(argv))
    except Exit:
        return EXIT_OK
    if given.explain:
        chosen = rules() if given.explain == "all" else (rule(given.explain),)
        show("\n\n\n".join(report.explain(one) for one in chosen))
        return EXIT_OK
    line_of_file.cache_clear()
    paths = given.paths or ["."]
    config = Config() if given.no_config else find(paths[0])
    settings = Settings(
        given.target or config.target or "tpu",
        _codes(given.select, "--select") or config.select,
        _codes(given.ignore, "--ignore") + config.ignore,
        version(given.tf_version, "--tf-version") if given.tf_version else config.tf_version,
    )
    jobs = given.jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else given.jobs or os.cpu_count() or 1
    found = [path for path in files(paths) if not config.excludes(path)]
    name = None if given.no_cache else stored.key(found, (settings, config, given.level))
    result = stored.load(name) if name else None
    if result is None:
        result = lint(found, settings, config, given.level, jobs)
        if name:
            stored.store(name, result)
    known = given.baseline or config.baseline
    if given.write_baseline:
        number = baseline.save(given.write_baseline, result.findings, line_of)
        tell(
            "\n".join([*report.failures(result), f"hwal: {report.count(number, 'finding')} written to {given.write_baseline}"])
        )
        return _code(False, result)
    if known:
        result = replace(result, findings=tuple(baseline.without(result.findings, baseline.load(known), line_of)))
    if given.diff or given.fix:
        changed = fixing.fixed(result, settings, config, given.unsafe_fixes)
        if given.diff:
            show(fixing.diff(changed))
            if result.errors:
                tell("\n".join(report.failures(result)))
            return _code(bool(changed), result)
        fixing.write(changed)
        if changed:
            line_of_file.cache_clear()
            total = sum(number for _, _, number in changed.values())
            tell(f"hwal: {report.count(total, 'finding')} fixed in {report.count(len(changed), 'file')}")
            result = lint(found, settings, config, given.level, jobs)
            if known:
                result = replace(result, findings=tuple(baseline.without(result.findings, baseline.load(known), line_of)))
    show(_report(result, given.format, settings, given.statistics, given.checklist))
    return _code(bool(result.findings), result)


def _code(found: bool, result: Result) -> int:
    """2 where a file could not be linted, whatever the others have: what was not looked at is neither clean nor faulty."""
    return EXIT_USAGE if result.errors else EXIT_FAILED if found else EXIT_OK


def _codes(text: str | None, flag: str) -> tuple[str, ...]:
    codes = tuple(code.strip().upper() for code in (text or "").split(",") if code.strip())
    check_codes(codes, f"hwal lint {flag} {text}")
    return codes


def _report(result: Result, form: str, settings: Settings, statistics: bool, checklist: bool) -> str:
    if statistics and checklist:
        raise UsageError("--statistics and --checklist are two answers", where="hwal lint", hint="one of them")
    if statistics:
        return report.statistics(result)
    if checklist:
        return report.checklist(result, settings.target)
    if form == "json":
        return report.as_json(result)
    if form == "github":
        return report.github(result)
    return report.sarif(result) if form == "sarif" else report.text(result, line_of)


def line_of(found: Diagnostic) -> str:
    """The line of text that a finding stands on, in the file as it is."""
    lines = line_of_file(found.path, found.cell)
    return lines[found.line - 1] if 0 < found.line <= len(lines) else ""


@cache
def line_of_file(path: str, cell: int | None) -> list[str]:
    """The lines of a file, or of one cell of a notebook."""
    text = read_text(path)
    if isinstance(text, Unreadable):
        return []
    lines = text.text.split("\n")
    if cell is not None and text.cells:
        return [line for line, (number, _) in zip(lines, text.cells, strict=False) if number == cell]
    return lines
