"""`hwal doctor`: what is wrong with the devices, the installed versions and the limits here, each with a remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from hwal.cli import show
from hwal.cli.parser import Exit, Parser
from hwal.env import TOPOLOGY
from hwal.errors import EXIT_FAILED, EXIT_OK, UsageError
from hwal.finding import Finding
from hwal.survey import survey

EPILOG = """\
exit codes: 0 nothing that stops a run, 1 an error was found, 2 a wrong flag or file

examples:
  hwal doctor
  hwal doctor --json
  hwal doctor --from tests/hosts/cuda-lost     a recorded host
"""


def main(argv: Sequence[str]) -> int:
    about = "What is wrong, or could be better, with devices, installed versions and limits; each finding with a remedy."
    parser = Parser("doctor", about, "[flags]", EPILOG)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--from", dest="source", metavar="PATH", help="examine a recorded host's folder, not this machine")
    try:
        given = parser.parse_args(list(argv))
    except Exit:
        return EXIT_OK
    found = survey(given.source or os.environ.get(TOPOLOGY) or None)
    if found.machine is None:
        raise UsageError(
            "a file tells which devices there are, not how they are",
            where=f"--from {given.source}" if given.source else f"{TOPOLOGY}={os.environ.get(TOPOLOGY)}",
            hint="give the folder of a recorded host, or run hwal doctor on the machine",
        )
    from hwal.doctor import examine

    findings = examine(found.machine, found.probes, found.backends)
    if given.json:
        show(json.dumps({"findings": [finding.to_dict() for finding in findings]}, indent=2))
    else:
        show("\n".join(_text(findings)))
    return EXIT_FAILED if any(finding.level == "error" for finding in findings) else EXIT_OK


def _text(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["nothing found"]
    lines = []
    for finding in findings:
        lines += [
            f"{finding.level}: {finding.subject}: {finding.what}",
            f"  seen:  {finding.evidence}",
            f"  so:    {finding.consequence}",
            f"  try:   {finding.remedy}",
        ]
    return lines
