"""Text that came by way of a terminal, a mail or a forum, as the tool printed it.

Colours, a byte-order mark, odd blanks, prompts with their commands, code fences, quote marks and indentation that every line
has are taken off. Lines keep their numbers, so that an error about one names the line of the file.
"""

from __future__ import annotations

import re
from textwrap import dedent

# ECMA-48 escape sequences; of a colour (SGR) also without the ESC, which forums drop
ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Z]|\x1b[=>]|\[\d{1,2}(?:;\d{1,3})*m"
)
BLANKS = str.maketrans(
    dict.fromkeys("\x0b\x0c\x1c\x1d\x1e\x85\xa0\u2002\u2003\u2007\u2009\u202f\u2028\u2029\u3000", " ")
    | dict.fromkeys("\ufeff\u200b\u200e\u200f\u2060\x00", "")
)
TOOLS = r"(?:sudo\s+)?(?:\S*/)?(?:nvidia-smi|rocm-smi|amd-smi|lspci|cat|find|docker|kubectl|srun|ssh)(?:\.exe)?"
PROMPT = re.compile(
    r"\s*(?:"
    r"\$(?:\s.*)?"  # $ command
    rf"|\S*[#>%$❯➜]\s*{TOOLS}\b.*"  # # nvidia-smi, ~$ nvidia-smi
    r"|(?:\([\w.-]+\)\s*)?\[?[\w.-]+@[\w.-]+[:\s][^$#%>]*[$#%>](?:\s.*)?"  # (env) user@host:~$ command
    r"|(?:PS )?[A-Za-z]:\\[^>]*>.*"  # PS C:\Users\user> command
    rf"|{TOOLS}(?:\s+-?[\w-]+(?:=\S+)?)*"  # nvidia-smi topo -m
    r"|(?:```|~~~).*"
    r")\s*"
)
QUOTES = ("#", ">", "//", "|")
RULE = re.compile(r"\|[-:| ]*\|")  # below the head of a table in Markdown


def tidy(text: str) -> str:
    """The text without what the way here added to it."""
    lines = ESCAPES.sub("", re.sub(r"\r\n?", "\n", text).translate(BLANKS)).split("\n")
    while True:
        lines = ["" if PROMPT.fullmatch(line) else line.rstrip() for line in lines]
        mark = _quote(lines)
        if mark is None:
            return dedent("\n".join(lines))
        if mark == "|" and all(line.endswith("|") for line in lines if line):
            lines = [_cells(line.strip()) for line in lines]
        else:
            lines = [re.sub(rf"^\s*{re.escape(mark)} ?", "", line) for line in lines]


def _quote(lines: list[str]) -> str | None:
    """The mark that every line begins with which holds anything."""
    told = [line.lstrip() for line in lines if line]
    return next((mark for mark in QUOTES if told and all(line.startswith(mark) for line in told)), None)


def _cells(line: str) -> str:
    """A row of a table in Markdown, its cells parted by tabs."""
    return "" if RULE.fullmatch(line) else "\t".join(cell.strip() for cell in line[1:-1].split("|"))
