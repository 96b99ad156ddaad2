"""Notebooks: the code cells of an .ipynb as one text, magics blanked, with a way back to each cell."""

from __future__ import annotations

import json
import re


class NotebookError(ValueError):
    """A file that is no notebook."""


MAGIC = re.compile(r"^\s*(?:[%!?]|[A-Za-z_][\w.]*\?+\s*$)")
ASSIGNED_MAGIC = re.compile(r"^(?P<head>\s*[\w, ]+=\s*)[%!].*$")
OTHER_LANGUAGES = re.compile(r"^\s*%%(?!time|timeit|capture|prun)\w+")


def from_notebook(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The code, and for each of its lines the cell (from 1, among all cells) and the line there. Raises NotebookError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"no notebook: {str(error).splitlines()[0]}") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise NotebookError("no notebook: it has no list of cells")
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(part, str) for part in source):
            source = "".join(source)
        if not isinstance(source, str) or OTHER_LANGUAGES.match(source):
            continue
        for index, line in enumerate(source.splitlines(), 1):
            lines.append(_plain(line))
            places.append((number, index))
    return "\n".join(lines) + "\n", places


def _plain(line: str) -> str:
    """A line without its magic, of the same indentation."""
    if match := ASSIGNED_MAGIC.match(line):
        return f"{match['head']}None"
    if MAGIC.match(line):
        return line[: len(line) - len(line.lstrip())] + "pass"
    return line
