"""Each rule's docstring is its test: Bad fires, Good does not, and what it says of itself is there."""

from __future__ import annotations

import ast
import re

import pytest

from hwal.lint import edits
from hwal.lint.catalog import rules
from hwal.lint.diagnostic import Rule
from hwal.lint.engine import check
from hwal.lint.rules import MODULES

RULES = [pytest.param(rule, id=rule.code) for rule in rules()]


@pytest.mark.parametrize("rule", RULES)
def test_bad_fires(rule: Rule) -> None:
    found = [one for one in check(rule.section("Bad"), target="tpu") if one.code == rule.code]
    assert found
    assert all(one.message and one.help for one in found)


@pytest.mark.parametrize("rule", RULES)
def test_good_does_not(rule: Rule) -> None:
    found = check(rule.section("Good"), target="tpu")
    assert [one for one in found if one.code == rule.code or one.severity == "error"] == []


@pytest.mark.parametrize("rule", RULES)
def test_the_docstring_says_what_and_why(rule: Rule) -> None:
    assert rule.section("What") and rule.section("Why")
    assert rule.doc.startswith(rule.name + "\n")
    assert re.fullmatch(r"(XLA|TPU|PTX|HW)[0-9]{3}", rule.code)
    if rule.fix:
        assert rule.section("Fix safety").startswith(rule.fix)


PAGE = {
    **dict.fromkeys(("XLA006", "XLA105", "TPU501"), "safe"),
    **{f"XLA{number:03}": "unsafe" for number in (1, 3, 8, 102, 104, 106, 107, 109, 201, 202, 206, 207, 208, 302, 405)},
    **dict.fromkeys(("TPU504", "PTX603", "PTX607", "PTX609"), "unsafe"),
}
"""The fixes that specs/lint.md promises."""


@pytest.mark.parametrize("code", PAGE)
def test_every_fix_that_is_promised_is_there(code: str) -> None:
    assert next(one.fix for one in rules() if one.code == code) == PAGE[code]


FIXABLE = [pytest.param(rule, id=rule.code) for rule in rules() if rule.fix]


@pytest.mark.parametrize("rule", FIXABLE)
def test_a_fixed_file_parses_and_is_clean_of_what_was_fixed(rule: Rule) -> None:
    text = rule.section("Bad")
    fixes = [one.fix for one in check(text, target="tpu") if one.code == rule.code and one.fix]
    assert fixes, "a rule that says it has a fix fixes its own example"
    assert {fix.safety for fix in fixes} == {rule.fix}
    lines, done = edits.apply_fixes(text.split("\n"), fixes)
    assert done
    fixed = "\n".join(lines)
    ast.parse(fixed)
    assert len([one for one in check(fixed, target="tpu") if one.code == rule.code]) < len(
        [one for one in check(text, target="tpu") if one.code == rule.code]
    )


def test_one_file_a_rule() -> None:
    assert [name.partition("_")[0].upper() for name in MODULES] == [rule.code for rule in rules()]
    assert len({rule.code for rule in rules()}) == len(MODULES) == len({rule.name for rule in rules()})
