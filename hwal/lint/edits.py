"""Edits of a file's text, from nodes of its tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from hwal.lint.diagnostic import Edit, Fix
from hwal.lint.source import Source


def column(source: Source, line: int, offset: int) -> int:
    """ast counts columns in bytes of UTF-8; an editor and we count characters."""
    text = source.lines[line - 1]
    return offset if text.isascii() else len(text.encode("utf-8")[:offset].decode("utf-8", "ignore"))


def span(source: Source, node: ast.AST) -> tuple[int, int, int, int]:
    """Line, column, last line and the column after it of a node; columns in characters from 0."""
    line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    return (
        line,
        column(source, line, node.col_offset),  # type: ignore[attr-defined]
        end,
        column(source, end, node.end_col_offset),  # type: ignore[attr-defined]
    )


def text(source: Source, node: ast.AST) -> str:
    """The text of a node as it stands in the file."""
    line, start, end_line, end = span(source, node)
    if line == end_line:
        return source.lines[line - 1][start:end]
    return "\n".join([source.lines[line - 1][start:], *source.lines[line : end_line - 1], source.lines[end_line - 1][:end]])


def replace(source: Source, node: ast.AST, new: str) -> Edit:
    """Puts a text in a node's place."""
    return Edit(*span(source, node), new)


def remove_keyword(source: Source, call: ast.Call, name: str) -> Edit | None:
    """Takes `name=…` and its comma out of a call."""
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    for index, part in enumerate(parts):
        if isinstance(part, ast.keyword) and part.arg == name:
            line, start, end_line, end = span(source, part)
            if index > 0:
                _, _, line, start = span(source, parts[index - 1])
            elif len(parts) > 1:
                end_line, end = span(source, parts[1])[:2]
            return Edit(line, start, end_line, end, "")
    return None


def add_keyword(source: Source, call: ast.Call, new: str) -> Edit:
    """Adds `name=value` at the end of a call's arguments."""
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if parts:
        _, _, line, at = span(source, parts[-1])
        return Edit(line, at, line, at, f", {new}")
    _, _, line, at = span(source, call)
    return Edit(line, at - 1, line, at - 1, new)


def module_name(source: Source, package: str) -> str | None:
    """The name that a file gives a package: `tf` for tensorflow. None where it has none."""
    for node in source.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == package:
                    return alias.asname or alias.name
    return None


def apply(lines: Sequence[str], edits: Iterable[Edit]) -> list[str]:
    """The lines after edits that do not overlap."""
    result = list(lines)
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        head = result[edit.line - 1][: edit.column]
        tail = result[edit.end_line - 1][edit.end_column :]
        result[edit.line - 1 : edit.end_line] = (head + edit.text + tail).split("\n")
    return result


def apply_fixes(lines: Sequence[str], fixes: Iterable[Fix]) -> tuple[list[str], list[Fix]]:
    """The lines after as many fixes as do not touch the same text, and the fixes that were applied."""
    taken: list[tuple[tuple[int, int], tuple[int, int]]] = []
    done: list[Fix] = []
    edits: list[Edit] = []
    for fix in fixes:
        spans = [((e.line, e.column), (e.end_line, e.end_column)) for e in fix.edits]
        if any(
            (start < other_end and other_start < end) or start == other_start
            for start, end in spans
            for other_start, other_end in taken
        ):
            continue
        taken += spans
        edits += fix.edits
        done.append(fix)
    return apply(lines, edits), done
