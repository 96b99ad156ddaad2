"""Looks at a run's folder: its losses fall, and its checkpoint generates text.

python ci/trained.py RUN_DIR STEPS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    steps = [record["step"] for record in records]
    if steps != list(range(1, len(steps) + 1)):
        raise SystemExit(f"metrics.jsonl does not tell every step once: {steps}")
    return [record["loss"] for record in records]


def generated(checkpoint: Path) -> int:
    """Tokens that a fresh copy of the model adds to a prompt."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    prompt = torch.tensor([[ord(letter) for letter in "The "]])
    return int(model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0).shape[1] - prompt.shape[1])


def main(arguments: list[str]) -> int:
    run, steps = Path(arguments[0]), int(arguments[1])
    found = losses(run)
    checkpoints = sorted((run / "checkpoints").glob("step-*"))
    first, last = mean(found[:5]), mean(found[-5:])
    if len(found) != steps or not last < 0.9 * first or not checkpoints:
        print(f"{len(found)} steps, loss {first:.3f} -> {last:.3f}, checkpoints {checkpoints}", file=sys.stderr)
        return 1
    if not generated(checkpoints[-1]):
        print(f"{checkpoints[-1]} generates nothing", file=sys.stderr)
        return 1
    print(f"{steps} steps, loss {first:.3f} -> {last:.3f}, {checkpoints[-1].name} generates")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
