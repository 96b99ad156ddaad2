"""How fast kinds of GPUs are at their peak, by the names that drivers give them: the vendors' own figures.

Dense, 16-bit numbers, sums in 32 bits. Many data sheets give the rate "with sparsity" alone: it is twice the dense one. A kind
whose vendor has published no figure (H20, L20, MI308X …) is left out: it is not to be taken for its relatives.
"""

from __future__ import annotations

import re

# The first pattern that is found counts. TFLOPS of what the system counts as one GPU: a die of MI250, which has two.
PEAKS = (
    (r"GB300", 2500.0),  # GB300 NVL72: 360 PFLOPS of 72, sparse
    (r"B300", 2250.0),  # HGX B300: 36 PFLOPS of 8, sparse
    (r"GB200", 2500.0),  # GB200 NVL72: 360 PFLOPS of 72, sparse
    (r"B200", 2250.0),  # HGX B200: 36 PFLOPS of 8, sparse
    (r"GH200", 989.0),  # Grace Hopper data sheet: 1979, sparse
    (r"H[18]00 PCIe", 756.0),  # H100 data sheet, PCIe: 1513, sparse; H800 is cut in its NVLinks and in fp64
    (r"H[12]00 NVL", 835.0),  # H100 and H200 data sheets, NVL: 1671, sparse
    (r"H[128]00", 989.0),  # H100 and H200 data sheets, SXM: 1979, sparse; H800 as above
    (r"A[18]00", 312.0),  # A100 data sheet, SXM and PCIe alike; A800 is cut in its NVLinks
    (r"A40", 149.7),  # A40 data sheet
    (r"A30", 165.0),  # A30 data sheet
    (r"A10G", 70.0),  # A10G data sheet: it is no A10
    (r"A10", 125.0),  # A10 data sheet
    (r"A2", 18.0),  # A2 data sheet
    (r"L40S", 362.0),  # L40S data sheet
    (r"L40", 181.0),  # L40 data sheet
    (r"L4", 121.0),  # L4 data sheet: 242, sparse
    (r"RTX 6000 Ada", 364.2),  # RTX 6000 Ada data sheet: 1457 of fp8, sparse
    (r"RTX A6000", 154.8),  # RTX A6000 data sheet: 309.7, sparse
    (r"RTX A5000", 111.1),  # RTX A5000 data sheet: 222.2, sparse
    (r"RTX A4000", 76.7),  # RTX A4000 data sheet: 153.4, sparse
    (r"RTX 5090", 209.5),  # RTX Blackwell white paper, appendix A
    (r"RTX 4090", 165.2),  # Ada white paper, appendix A
    (r"RTX 3090", 71.0),  # GA102 white paper, appendix A
    (r"V100S", 130.0),  # V100 data sheet
    (r"V100-PCIE", 112.0),  # V100 data sheet
    (r"V100-(SXM[23]|DGXS)", 125.0),  # V100 data sheet
    (r"T4", 65.0),  # T4 data sheet
    (r"P100-SXM2", 21.2),  # P100 data sheet: no tensor cores, sums in 16 bits
    (r"P100-PCIE", 18.7),  # P100 data sheet
    (r"MI250X", 191.5),  # MI250X data sheet: 383 of two dies
    (r"MI250", 181.0),  # MI250 data sheet: 362.1 of two dies
    (r"MI210", 181.0),  # MI210 data sheet
    (r"MI100", 184.6),  # MI100 data sheet: of fp16; half of it of bf16
    (r"MI300A", 980.6),  # MI300A data sheet
    (r"MI3(00|25)X", 1307.0),  # MI300X and MI325X data sheets
    (r"MI350X", 2307.0),  # MI350X data sheet
    (r"MI355X", 2500.0),  # MI355X data sheet: 2.5 PFLOPS
)

OTHER = r"\b(?:Laptop|Max-Q|Mobile|Ti|SUPER|D)\b|-\d+[ABCQ]$"


def peak(name: str | None) -> float | None:
    """Operations per second of a GPU with this name; None for one that the table lacks, and for a part of a GPU.

    A name that goes on is another board: a laptop's, a cut one for a market, a faster one; or a share of one (`A40-24Q`).
    """
    if name is None or "MIG" in name or re.search(OTHER, name):
        return None
    return next((tflops * 1e12 for pattern, tflops in PEAKS if re.search(rf"\b{pattern}\b", name)), None)
