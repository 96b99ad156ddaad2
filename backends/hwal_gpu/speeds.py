"""How fast kinds of GPUs are at their peak, by the names that drivers give them. (The vendors' data sheets: dense, 16 bits.)"""

from __future__ import annotations

import re

# The first pattern that is found counts. TFLOPS of what the system counts as one GPU: a die of MI250X, which has two.
PEAKS = (
    (r"GB200", 2500.0),
    (r"B200", 2250.0),
    (r"H100 PCIe", 756.0),
    (r"H[12]00 NVL", 835.0),
    (r"H[12]00", 989.0),
    (r"A100", 312.0),
    (r"L40S", 362.0),
    (r"L4", 121.0),
    (r"A10", 125.0),
    (r"RTX A6000", 154.8),
    (r"RTX 5090", 209.5),
    (r"RTX 4090", 165.2),
    (r"RTX 3090", 71.0),
    (r"V100", 125.0),
    (r"T4", 65.0),
    (r"MI250X", 191.5),
    (r"MI3(00|25)X", 1307.0),
    (r"MI355X", 2500.0),
)

OTHER = r"\b(?:Laptop|Max-Q|Mobile|Ti|SUPER|D)\b"


def peak(name: str | None) -> float | None:
    """Operations per second of a GPU with this name; None for one that the table lacks, and for a part of a GPU.

    A name that goes on is another board: a laptop's, a cut one for a market, a faster one.
    """
    if name is None or "MIG" in name or re.search(OTHER, name):
        return None
    return next((tflops * 1e12 for pattern, tflops in PEAKS if re.search(rf"\b{pattern}\b", name)), None)
