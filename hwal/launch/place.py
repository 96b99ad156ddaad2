"""A rank takes its place: the plan that the launcher left, its cores, its thread count."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from hwal.env import PLAN
from hwal.errors import PlanError
from hwal.values import Plan, Process


def read_plan(environ: Mapping[str, str]) -> Plan | None:
    """The plan in HWAL_PLAN: its JSON, or the path of a file with it; None when unset. Raises PlanError, RecordError."""
    text = environ.get(PLAN, "")
    if not text:
        return None
    where = PLAN
    if not text.lstrip().startswith("{"):
        where = f"{PLAN}={text}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise PlanError(
                f"the plan cannot be read: {error.strerror}",
                where=where,
                hint=f"{PLAN}=FILE, the plan.json of a run; without the variable the plan is made here",
            ) from None
    return Plan.from_json(text, where)


def take_place(process: Process, environ: MutableMapping[str, str]) -> None:
    """Moves this process to its cores and sets its thread count, before a framework makes its pools. Raises PlanError."""
    if process.cores is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, process.cores)
        except OSError as error:
            raise PlanError(
                f"this process cannot run on the CPU cores that the plan gives it: {error.strerror}",
                where=f"local rank {process.local_rank}, cores {', '.join(map(str, process.cores))}",
                hint="make the plan on this machine",
            ) from None
    if process.threads is not None:
        environ["OMP_NUM_THREADS"] = str(process.threads)
