"""tidy: what a terminal, a mail or a forum adds to a tool's output comes off, and lines keep their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.paste import tidy

TOOL = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n\nLegend:\n  X = Self"


@pytest.mark.parametrize(
    "pasted",
    [
        TOOL.replace("\n", "\r\n"),
        "\ufeff" + TOOL,
        TOOL.replace("GPU0\tGPU1", "\x1b[4mGPU0\x1b[0m\t\x1b]8;;x\x07GPU1\x1b(B"),
        TOOL.replace("GPU0\tGPU1", "[4mGPU0\tGPU1[0m"),
        TOOL.replace("\n", "   \n"),
        TOOL.replace("GPU0\t X", "GPU0\t\u200bX").replace("\tX", "\t X"),
        "    " + TOOL.replace("\n", "\n    "),
        "> " + TOOL.replace("\n", "\n> "),
        "> # " + TOOL.replace("\n", "\n># "),
    ],
)
def test_what_was_added_comes_off(pasted: str) -> None:
    assert [line.split() for line in tidy(pasted).split("\n")] == [line.split() for line in TOOL.split("\n")]


def test_a_table_in_markdown() -> None:
    table = "| | GPU0 | GPU1 |\n|---|:-:|---|\n| GPU0 | X | NV4 |\n| GPU1 | NV4 | X |"
    assert tidy(table) == "\tGPU0\tGPU1\n\nGPU0\tX\tNV4\nGPU1\tNV4\tX"


@pytest.mark.parametrize(
    "line",
    [
        "$ nvidia-smi topo -m",
        "~$ rocm-smi --showtopo",
        "# nvidia-smi topo -m",
        "> /opt/rocm/bin/amd-smi topology -a -t --json",
        "root@node-3:~# nvidia-smi -L",
        "(base) user@host:/data$ ",
        "[user@login1 ~]$ rocm-smi --showtopo",
        r"PS C:\Users\user> nvidia-smi",
        r"C:\Windows> nvidia-smi.exe -q",
        "nvidia-smi --query-gpu=name,uuid --format=csv",
        "sudo nvidia-smi topo -m",
        "```text",
        "```",
    ],
)
def test_a_prompt_leaves_its_line_empty(line: str) -> None:
    assert tidy(f"{line}\n{TOOL}\n{line}") == f"\n{tidy(TOOL)}\n"


@pytest.mark.parametrize("line", TOOL.split("\n"))
def test_a_tool_s_own_line_stays(line: str) -> None:
    assert tidy(f"x\n{line}").split("\n")[1] == line.rstrip()


@given(st.text())
def test_lines_keep_their_numbers(text: str) -> None:
    assert tidy(text).count("\n") == text.replace("\r\n", "\n").replace("\r", "\n").count("\n")


def test_json_and_xml_stay_what_they_are() -> None:
    for text in ('{\n  "a": [\n    "# b"\n  ]\n}', '<?xml version="1.0"?>\n<system>\n  <cpu/>\n</system>'):
        assert tidy(text) == text
