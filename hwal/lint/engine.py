"""Engine: sources in, diagnostics out. Pure: who reads files and who prints is elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from hwal.errors import UsageError, nearest
from hwal.lint import edits
from hwal.lint.assumed import is_test
from hwal.lint.catalog import check_codes, rules
from hwal.lint.context import Contexts
from hwal.lint.diagnostic import RANK, TARGETS, Diagnostic, Finding, Rule, Target
from hwal.lint.file import File
from hwal.lint.interpreter import Interpreter
from hwal.lint.noqa import suppressed
from hwal.lint.project import Project
from hwal.lint.source import Source, read


@dataclass(frozen=True)
class Settings:
    """What to look for. `select` and `ignore` are codes or beginnings of codes; `tf_version` decides whether `tf.keras` is
    Keras 2, whose layers AutoGraph converts (before 2.16)."""

    target: Target = "tpu"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    tf_version: tuple[int, int] = (2, 21)

    def wants(self, code: str) -> bool:
        return (not self.select or code.startswith(self.select)) and not (self.ignore and code.startswith(self.ignore))


def check(source: str, *, target: Target = "tpu", path: str = "<string>", select: Iterable[str] = ()) -> list[Diagnostic]:
    """The findings of one file's text. Raises SyntaxError where it is no Python, RecursionError where it is nested too deep,
    and UsageError for a target or a code that is none."""
    if target not in TARGETS:
        near = nearest(str(target), TARGETS)
        raise UsageError(
            f"target {target!r} is none; there are {', '.join(TARGETS)}",
            where=f"hwal.lint.check(target={target!r})",
            hint=f"did you mean {near}?" if near else TARGETS[0],
        )
    codes = (select,) if isinstance(select, str) else tuple(select)
    check_codes(codes, f"hwal.lint.check(select={select!r})")
    settings = Settings(target, codes)
    return check_sources([read(path, source, "source")], settings)


def check_sources(
    sources: Iterable[Source], settings: Settings, others: Iterable[Source] = (), noqa: bool = True
) -> list[Diagnostic]:
    """The findings of files that are linted together, in the order of path and line. `others` are files that these may call
    into, and of which nothing is told."""
    told = list(sources)
    project = Project([*told, *others])
    contexts = Contexts(project, autograph_in_keras=settings.tf_version < (2, 16))
    found: dict[tuple[str, str, int, int], Diagnostic] = {}
    wanted = [rule for rule in rules() if settings.wants(rule.code)]
    of_trace = [rule for rule in wanted if rule.scope == "trace"]
    of_file = [rule for rule in wanted if rule.scope == "module"]
    paths = {source.path for source in told}
    if contexts.roots:
        for trace in Interpreter(project, contexts).run():
            if trace.function.module.path in paths:
                for rule in of_trace:
                    for finding in rule.check(trace):
                        _keep(found, diagnostic(rule, finding, trace.function.module, settings.target))
    for source in told:
        if is_test(source.path):
            continue
        file = File(source, project, contexts)
        for rule in of_file:
            for finding in rule.check(file):
                _keep(found, diagnostic(rule, finding, source, settings.target))
    result = sorted(found.values(), key=lambda d: (d.path, d.line, d.column, d.code))
    if noqa:
        result = [
            d for source in told for d in suppressed(source, [d for d in result if d.path == source.path], settings.wants)
        ]
    return result


def _keep(found: dict[tuple[str, str, int, int], Diagnostic], new: Diagnostic) -> None:
    """One finding a rule and place: the severest that any trace gives."""
    key = (new.code, new.path, new.line, new.column)
    old = found.get(key)
    if old is None or RANK[new.severity] > RANK[old.severity]:
        found[key] = new


def diagnostic(rule: Rule, finding: Finding, source: Source, target: Target) -> Diagnostic:
    """A finding with its place in the file: of a statement with a body, its head."""
    node = finding.node
    line, start, end_line, end = edits.span(source, node)
    if isinstance(node, ast.If | ast.While | ast.For | ast.With):
        head = (
            node.iter if isinstance(node, ast.For) else node.items[-1].context_expr if isinstance(node, ast.With) else node.test
        )
        _, _, end_line, end = edits.span(source, head)
    given = finding.severity or rule.severity
    severity = given if isinstance(given, str) else given[target]
    return Diagnostic(
        rule.code,
        rule.name,
        source.path,
        line,
        start + 1,
        end_line,
        end + 1,
        severity,
        finding.message,
        finding.help,
        finding.fix,
    )
