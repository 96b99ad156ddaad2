"""How right the linter is: precision, recall and exact lines on programs whose fate was measured.

    python tests/bench/lint_truth.py FOLDER [--target tpu] [--misses]

FOLDER holds `labels.json` and the programs that it names. A program is bad for tpu when tracing or compiling fails, when a
value is baked in, when Keras turns XLA off, or when it is silently wrong; for cpu and gpu a baked value is no error. It is
flagged when it has an `error` finding. A line is exact when an error finding stands on a line that was named by hand, or, where
none was, on one that was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from hwal.lint.engine import check  # noqa: E402

BAD = {
    "tpu": ("trace_error", "compile_error", "value_baked", "silent_wrong", "keras_disables_jit"),
    "gpu": ("trace_error", "compile_error", "silent_wrong"),
    "cpu": ("trace_error", "compile_error", "silent_wrong"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", choices=BAD, default="tpu")
    parser.add_argument("--misses", action="store_true", help="name every program that is judged wrongly")
    given = parser.parse_args()
    cases = json.loads((given.folder / "labels.json").read_text(encoding="utf-8"))["cases"]
    counts: Counter[str] = Counter()
    groups: dict[str, Counter[bool]] = {}
    for case in cases:
        text = (given.folder / case["file"]).read_text(encoding="utf-8")
        errors = [found for found in check(text, target=given.target, path=case["file"]) if found.severity == "error"]
        bad = case["verdict"] in BAD[given.target]
        outcome = ("hit" if errors else "missed") if bad else ("false alarm" if errors else "silent")
        counts[outcome] += 1
        for code in {found.code for found in errors}:
            groups.setdefault(code, Counter())[bad] += 1
        lines = set(case["hand_culprit_lines"] or case["measured_lines"])
        exact = None
        if outcome == "hit" and lines:
            exact = bool(lines & {found.line for found in errors})
            counts["exact" if exact else "elsewhere"] += 1
        if given.misses and (outcome in ("missed", "false alarm") or exact is False):
            found = ", ".join(f"{e.code}:{e.line}" for e in errors) or "nothing"
            print(f"{outcome:<12}{case['file']} {case['name']} ({case['verdict']}): {found}; lines {sorted(lines)}")
    flagged = counts["hit"] + counts["false alarm"]
    bad_ones = counts["hit"] + counts["missed"]
    placed = counts["exact"] + counts["elsewhere"]
    print(f"target {given.target}: {len(cases)} programs, {bad_ones} bad, {flagged} flagged")
    print(
        f"precision {share(counts['hit'], flagged)}  recall {share(counts['hit'], bad_ones)}  "
        f"exact line {share(counts['exact'], placed)}"
    )
    for code, row in sorted(groups.items()):
        print(f"  {code}  right {row[True]}, false {row[False]}")
    return 0


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} = {part / whole:.1%}" if whole else "none"


if __name__ == "__main__":
    sys.exit(main())
