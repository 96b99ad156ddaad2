"""plan: a Choice and a Request -> the Plan: how many processes, which device and cores each, in which precision. Pure."""

from __future__ import annotations

from hwal.plan.make import make_plan

__all__ = ["make_plan"]
