"""--plan FILE: read, and held against the machine and the flags."""

from __future__ import annotations

import json
from dataclasses import replace
from textwrap import dedent

import pytest

from hwal.env import Settings
from hwal.errors import HwalError, RecordError
from hwal.plan import make_plan
from hwal.plan.given import choice_of, read_plan
from hwal.topology import Device
from hwal.values import Caps, Choice, Decision, Plan, Probe, Process, Request, Target

DEVICES = tuple(Device("toy", i, id=f"toy{i}", cores=(i,), threads=1, native={"bf16": "unit"}) for i in range(2))
PROBES = (Probe("other", "absent", "none"), Probe("toy", "ready", "two toys", devices=DEVICES))


def made(n: int = 2) -> Plan:
    choice = Choice(Target("toy"), "toy", DEVICES, "a test")
    caps = Caps(frameworks=("torch",), collectives="gloo")
    return make_plan(choice, caps, Request(target=Target("toy"), processes=n), Decision("torch", "a test"))


def test_a_plan_and_a_dry_run_both_read_back() -> None:
    plan = made()
    assert read_plan(plan.to_json(), "p.json") == plan
    document = {"choice": {}, "plan": plan.to_dict(), "launch": {}}
    assert read_plan(json.dumps(document), "p.json") == plan


def test_its_devices_are_the_choice() -> None:
    choice = choice_of(made(1), PROBES, Request(plan="p.json", processes=1, settings=Settings(precision="bf16")))
    assert (choice.backend, [d.index for d in choice.devices], choice.why) == ("toy", [0], "asked for by --plan p.json")


@pytest.mark.parametrize("text", ["[]", "{}", '{"plan": 1}', '"plan"'])
def test_not_a_plan(text: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_plan(text, "p.json")
    assert str(caught.value) == (
        "neither a plan nor what --dry-run prints\n  where: p.json\n  try:   hwal train --dry-run … > FILE writes such a file"
    )


def test_a_damaged_plan_names_the_place() -> None:
    document = made().to_dict()
    document["processes"][1]["devices"] = "all"
    with pytest.raises(RecordError) as caught:
        read_plan(json.dumps(document), "p.json")
    assert str(caught.value) == 'expected a list, got "all"\n  where: p.json.processes[1].devices'


OTHER = (Probe("toy", "ready", "one other toy", devices=(DEVICES[0], replace(DEVICES[1], id="toy9"))),)
ONE = (Probe("toy", "ready", "one toy", devices=DEVICES[:1]),)
WRONG = replace(made(), processes=(Process(0, (0,)), Process(1, (7,))))


@pytest.mark.parametrize(
    ("plan", "probes", "request_", "text"),
    [
        (
            made(),
            ONE,
            Request(),
            """
            the plan uses 2 toy device(s), 1 here; missing: 1
              where: --plan p.json
              try:   make a plan on this machine: hwal train --dry-run
            """,
        ),
        (
            made(),
            OTHER,
            Request(),
            """
            toy device 1 is another one: toy1 in the plan, toy9 here
              where: --plan p.json
              try:   make a plan on this machine: hwal train --dry-run
            """,
        ),
        (
            WRONG,
            PROBES,
            Request(),
            """
            a process of the plan uses device 7, which the plan's devices do not list
              where: --plan p.json
            """,
        ),
        (
            made(),
            PROBES,
            Request(processes=3),
            """
            -n 3 contradicts the plan, which says 2
              where: --plan p.json
              try:   leave out -n or --plan
            """,
        ),
        (
            made(),
            PROBES,
            Request(settings=Settings(precision="fp32")),
            """
            --precision fp32 contradicts the plan, which says bf16
              where: --plan p.json
              try:   leave out --precision or --plan
            """,
        ),
        (
            made(),
            PROBES,
            Request(target=Target("other")),
            """
            --device other contradicts the plan, which says toy
              where: --plan p.json
              try:   leave out --device or --plan
            """,
        ),
    ],
)
def test_errors_as_printed(plan: Plan, probes: tuple[Probe, ...], request_: Request, text: str) -> None:
    with pytest.raises(HwalError) as caught:
        choice_of(plan, probes, replace(request_, plan="p.json"))
    assert str(caught.value) == dedent(text).strip()
    assert caught.value.exit_code == 2
