"""The catalog of rules, imported from one file each."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from hwal.errors import UsageError, nearest
from hwal.lint.diagnostic import Rule
from hwal.lint.rules import MODULES


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of their codes."""
    return tuple(import_module(f"hwal.lint.rules.{name}").RULE for name in MODULES)


def rule(code: str) -> Rule:
    """The rule of a code or a name. Raises UsageError for one that is none."""
    for one in rules():
        if code.upper() == one.code or code.lower() == one.name:
            return one
    begun = (one.code for one in rules() if code and one.code.startswith(code.upper()))
    near = (
        next(begun, None)
        or nearest(code.upper(), [one.code for one in rules()])
        or nearest(code.lower(), [one.name for one in rules()])
    )
    raise UsageError(
        f"no rule {code!r}", where="hwal lint", hint=f"did you mean {near}?" if near else "hwal lint --explain all"
    )


def check_codes(codes: tuple[str, ...], where: str) -> None:
    """Raises UsageError for a code, or a beginning of one, that no rule has."""
    known = [*(one.code for one in rules()), "HW001"]
    for code in codes:
        if not any(name.startswith(code) for name in known):
            near = nearest(code, known)
            raise UsageError(
                f"no rule's code begins with {code!r}",
                where=where,
                hint=f"did you mean {near}?" if near else "XLA, TPU, PTX, HW",
            )
