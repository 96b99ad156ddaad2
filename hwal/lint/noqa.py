"""`# noqa: XLA201` on a line takes its findings away; one that takes none away is a finding itself."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable

from hwal.lint.diagnostic import Diagnostic, Edit, Fix
from hwal.lint.source import Source

COMMENT = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]+[0-9]*(?:[,\s]+[A-Z]+[0-9]*)*))?", re.IGNORECASE)
OURS = re.compile(r"^(?:XLA|TPU|PTX|HW)\d*$")
UNUSED = "HW001"


def comments(source: Source) -> dict[int, tuple[int, int, frozenset[str] | None]]:
    """Line -> where its noqa begins and ends, and its codes of ours; None for a bare noqa, which means every code."""
    found: dict[int, tuple[int, int, frozenset[str] | None]] = {}
    if "noqa" not in source.text and "NOQA" not in source.text:
        return found
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT and (match := COMMENT.search(token.string)):
                codes = None
                if match["codes"]:
                    codes = frozenset(code for code in re.split(r"[,\s]+", match["codes"].upper()) if OURS.match(code))
                start = token.start[1] + match.start()
                found[token.start[0]] = (start, token.start[1] + match.end(), codes)
    except (tokenize.TokenError, IndentationError):  # ast took it; a stray form feed is enough
        return {}
    return found


def suppressed(source: Source, found: Iterable[Diagnostic], wants: Callable[[str], bool]) -> list[Diagnostic]:
    """The findings that no comment takes away, and one for each comment with a code that takes nothing away."""
    marks = comments(source)
    if not marks:
        return list(found)
    kept, used = [], set()
    statements = _first_lines(source.tree)
    for one in found:
        places = (one.line, one.end_line, statements.get(one.line, one.line))
        for line in places:
            if line in marks:
                codes = marks[line][2]
                hits = [code for code in codes or () if one.code.startswith(code)]
                if codes is None or hits:
                    used |= {(line, code) for code in hits}
                    break
        else:
            kept.append(one)
    if wants(UNUSED):
        for line, (start, end, codes) in marks.items():
            for code in sorted(codes or ()):
                if (line, code) not in used and wants(code):
                    kept.append(_unused(source, line, start, end, code, len(codes or ()) == 1))
    return sorted(kept, key=lambda d: (d.line, d.column, d.code))


def _unused(source: Source, line: int, start: int, end: int, code: str, alone: bool) -> Diagnostic:
    text = source.lines[line - 1]
    fix = None
    if alone and not text[end:].strip():
        fix = Fix("safe", "take the comment away", (Edit(line, len(text[:start].rstrip()), line, len(text), ""),))
    return Diagnostic(
        UNUSED, "unused-noqa", source.path, line, start + 1, line, end + 1, "warning",
        f"`# noqa: {code}` takes no finding away", "remove it: what it was for is gone", fix,
    )  # fmt: skip


def _first_lines(tree: ast.Module) -> dict[int, int]:
    """Line of a statement of several lines -> its last line, where an editor puts the comment."""
    return {
        line: node.end_lineno or node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.Assign | ast.Return | ast.AugAssign | ast.AnnAssign)
        and node.end_lineno != node.lineno
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
