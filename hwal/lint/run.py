"""Run: reads files, lints those that belong together, in parallel where there are several such groups."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import NamedTuple

from hwal.lint.config import Config
from hwal.lint.diagnostic import RANK, Diagnostic, Severity
from hwal.lint.discover import Text, Unreadable, module_name, read_text
from hwal.lint.engine import Settings, check_sources
from hwal.lint.source import Source, mentions, parse, read

IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<from>[.\w]+)\s+import\s+(?P<names>[\w, ]*)|import\s+(?P<import>[\w., ]+))", re.MULTILINE
)
PARALLEL_FROM = 400_000
"""Characters of code from which on a second process is worth its start."""
TOO_DEEP = "nested too deep for the linter (thousands of terms, elifs or calls in one), so it was not linted"


@dataclass(frozen=True)
class Result:
    """What was found in how many files, and what could not be linted."""

    findings: tuple[Diagnostic, ...]
    files: int
    errors: tuple[Unreadable, ...]


class Named(NamedTuple):
    """A file, its dotted name, and whether it can have to do with what the linter knows: otherwise it is only parsed."""

    text: Text
    name: str
    mentions: bool = True

    @property
    def cost(self) -> int:
        """What it takes, in characters of code that is linted: parsing alone is several times as fast."""
        return len(self.text.text) // (1 if self.mentions else 6)


def lint(
    paths: Sequence[str], settings: Settings, config: Config | None = None, level: Severity = "info", jobs: int = 1
) -> Result:
    """Lints files (see `discover.files`). Never raises for what stands in one of them."""
    texts: list[Named] = []
    plain: list[list[Named]] = []
    errors: list[Unreadable] = []
    for path in paths:
        read_ = read_text(path)
        if isinstance(read_, Unreadable):
            errors.append(read_)
        elif mentions(read_.text):
            texts.append(Named(read_, module_name(path)))
        else:
            plain.append([Named(read_, "", False)])
    groups = components(texts) + plain
    size = sum(named.cost for group in groups for named in group)
    findings: list[Diagnostic] = []
    if jobs > 1 and len(groups) > 1 and size >= PARALLEL_FROM:
        with ProcessPoolExecutor(min(jobs, len(groups)), mp_context=get_context("spawn")) as pool:
            for found, failed in pool.map(_lint_bucket, buckets(groups, jobs), [settings] * jobs):
                findings += found
                errors += failed
    else:
        for group in groups:
            found, failed = lint_group(group, settings)
            findings += found
            errors += failed
    if config is not None:
        findings = [one for one in findings if not (codes := config.ignored_in(one.path)) or not one.code.startswith(codes)]
    findings = [one for one in findings if RANK[one.severity] >= RANK[level]]
    order = {path: index for index, path in enumerate(paths)}
    findings.sort(key=lambda one: (order.get(one.path, 0), one.cell or 0, one.line, one.column, one.code))
    return Result(tuple(findings), len(paths) - len(errors), tuple(sorted(errors, key=lambda e: order.get(e.path, 0))))


def buckets(groups: list[list[Named]], count: int) -> list[list[list[Named]]]:
    """Groups spread over so many processes, the largest first."""
    shares: list[list[list[Named]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for group in sorted(groups, key=lambda g: -sum(named.cost for named in g)):
        least = sizes.index(min(sizes))
        shares[least].append(group)
        sizes[least] += sum(named.cost for named in group)
    return shares


def _lint_bucket(groups: list[list[Named]], settings: Settings) -> tuple[list[Diagnostic], list[Unreadable]]:
    findings, errors = [], []
    for group in groups:
        found, failed = lint_group(group, settings)
        findings += found
        errors += failed
    return findings, errors


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles: syntax trees live to the end, and it would walk through all of them again and again,
    for 3.4 of 5.9 s that it takes to read Keras."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def lint_group(group: list[Named], settings: Settings) -> tuple[list[Diagnostic], list[Unreadable]]:
    """Lints files that import each other, in one process: two thirds of the time go into reading syntax trees, which every part
    of the analysis looks into, and to hand a tree to another process takes as long as to parse it."""
    sources: list[Source] = []
    errors: list[Unreadable] = []
    for (path, text, cells), name, mentioned in group:
        try:
            if mentioned:
                sources.append(read(path, text, name, cells))
            else:
                parse(path, text)
        except SyntaxError as error:
            errors.append(no_python(path, error, cells))
        except RecursionError:
            if mentioned:  # else there is nothing in it to find
                errors.append(Unreadable(path, TOO_DEEP))
    try:
        findings = check_sources(sources, settings)
    except RecursionError:
        findings = []
        for source in sources:
            try:
                findings += check_sources([source], settings)
            except RecursionError:
                errors.append(Unreadable(source.path, TOO_DEEP))
    cells_of = {source.path: source.cells for source in sources if source.cells}
    return [in_cell(one, cells_of.get(one.path)) for one in findings], errors


def no_python(path: str, error: SyntaxError, cells: list[tuple[int, int]] | None) -> Unreadable:
    """A file that is no Python; the line of a notebook counts in its cell, as those of findings do."""
    line, cell = error.lineno or 1, None
    if cells:
        cell, line = cells[min(line, len(cells)) - 1]
    return Unreadable(path, f"not Python: {error.msg}", line, cell)


def in_cell(found: Diagnostic, cells: list[tuple[int, int]] | None) -> Diagnostic:
    """A notebook's finding, counted from its cell. Its fix is dropped: a notebook is not rewritten."""
    if cells is None or not 0 < found.line <= len(cells):
        return found
    cell, line = cells[found.line - 1]
    end = cells[min(found.end_line, len(cells)) - 1][1]
    return replace(found, line=line, end_line=max(line, end), cell=cell, fix=None)


def components(texts: Iterable[Named]) -> list[list[Named]]:
    """Files in groups, so that no file imports one of another group."""
    items = list(texts)
    by_name = {named.name: index for index, named in enumerate(items)}
    by_tail: dict[str, list[int]] = {}
    for index, named in enumerate(items):
        by_tail.setdefault(named.name.rpartition(".")[2], []).append(index)
    parent = list(range(len(items)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for index, named in enumerate(items):
        for module in imported(named):
            others = [by_name[module]] if module in by_name else by_tail.get(module, []) if "." not in module else []
            for other in others[:1]:
                parent[root(index)] = root(other)
    groups: dict[int, list[Named]] = {}
    for index, named in enumerate(items):
        groups.setdefault(root(index), []).append(named)
    return list(groups.values())


def imported(named: Named) -> Iterator[str]:
    """The modules that a text's import lines name."""
    for match in IMPORT.finditer(named.text.text):
        if match["import"]:
            for part in match["import"].split(","):
                yield part.split()[0] if part.split() else ""
            continue
        module = match["from"]
        level = len(module) - len(module.lstrip("."))
        if level:
            parts = named.name.split(".")
            base = parts[: len(parts) - level + (named.text.path.endswith("__init__.py"))]
            module = ".".join([*base, module.lstrip(".")]).strip(".")
        yield module
        for name in (match["names"] or "").split(","):
            if name.strip():
                yield f"{module}.{name.split()[0]}"
