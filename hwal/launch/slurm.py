"""What srun tells its tasks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hwal.errors import UsageError, WorldError

NO_STEP = 4294967000  # batch, extern and interactive steps have ids at the very top of 32 bits


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process: SLURM_* alone only says that it is inside an allocation."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    return step.isascii() and step.isdigit() and int(step) < NO_STEP and "SLURM_PROCID" in environ


def tasks_here(environ: Mapping[str, str], size: int) -> tuple[int, str]:
    """How many tasks of the step share this node, and the variable that says so.

    SLURM_STEP_TASKS_PER_NODE is `2(x3),1`: one number a node, in the order of SLURM_NODEID.
    """
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        text = environ.get(name)
        if not text:
            continue
        counts = list(_counts(text, name))
        node = environ.get("SLURM_NODEID", "0")
        if not node.isdigit():
            raise UsageError(f"SLURM_NODEID={node!r} is not a whole number", where="environment")
        if name == "SLURM_NTASKS_PER_NODE":  # a wish for every node, not a list
            return min(counts[0], size), name
        if int(node) >= len(counts):
            raise WorldError(f"SLURM_NODEID={node}, but {name}={text} lists {len(counts)} node(s)", where="environment")
        return counts[int(node)], name
    nodes = environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    if nodes == "1":
        return size, "SLURM_NTASKS"
    raise WorldError(
        f"the step has {nodes} nodes, and no variable says how many tasks share this one",
        where="environment",
        hint="srun --ntasks-per-node=N",
    )


def _counts(text: str, name: str) -> Iterator[int]:
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise UsageError(f"{name}={text!r} is not a list of task counts such as 2(x3),1", where="environment")
        yield from [int(match[1])] * int(match[2] or 1)


def first_node(environ: Mapping[str, str]) -> str:
    """The host name of the step's first node, where rank 0 runs."""
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            return next(expand(environ[name], name))
    raise WorldError(
        "srun started several tasks, but no variable lists its nodes",
        where="environment",
        hint="export MASTER_ADDR (the first host's name)",
    )


def expand(text: str, where: str = "node list") -> Iterator[str]:
    """Host names of `node[01-03,7],login`, in order; numbers keep their leading zeros."""
    for item in _items(text, where):
        yield from _item(item, where)


def _items(text: str, where: str) -> Iterator[str]:
    """Splits at the commas that stand outside brackets."""
    depth, item = 0, ""
    for character in text.strip():
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            break
        if character == "," and depth == 0:
            yield item
            item = ""
        else:
            item += character
    if depth or not item:
        raise UsageError(f"{where}={text!r} is not a node list such as node[01-03,7]", where="environment")
    yield item


def _item(item: str, where: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([0-9,\-]+)\](.*)", item)
    if match is None:
        if "[" in item or "]" in item or not item:
            raise UsageError(f"{where}: {item!r} is not a node name", where="environment")
        yield item
        return
    before, ranges, after = match.groups()
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if not low or (part.count("-") == 1 and not high) or part.count("-") > 1:
            raise UsageError(f"{where}: {part!r} is not a range of nodes", where="environment")
        for number in range(int(low), int(high or low) + 1):
            for rest in _item(after, where) if after else ("",):
                yield f"{before}{number:0{len(low)}d}{rest}"
