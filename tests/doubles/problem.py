"""The problem both doubles train on: a line through points, with the losses a hand-written loop gives."""

from __future__ import annotations

ROWS = tuple((x, 3 * x - 1) for x in (7 * n % 20 / 8 for n in range(20)))  # (x, y), in mixed order
BATCH = 6  # the last global batch of an epoch has 2 rows
LEARNING_RATE = 0.1
STEPS_PER_EPOCH = -(-len(ROWS) // BATCH)


def batches() -> list[tuple[tuple[float, float], ...]]:
    return [ROWS[at : at + BATCH] for at in range(0, len(ROWS), BATCH)]


def losses_by_hand(epochs: int) -> list[float]:
    """The mean loss of each global batch, by plain gradient descent."""
    w = b = 0.0
    losses = []
    for _ in range(epochs):
        for batch in batches():
            errors = [w * x + b - y for x, y in batch]
            losses.append(sum(e * e for e in errors) / len(batch))
            w -= LEARNING_RATE * sum(2 * e * x for e, (x, _) in zip(errors, batch, strict=True)) / len(batch)
            b -= LEARNING_RATE * sum(2 * e for e in errors) / len(batch)
    return losses
