"""Parser for Kubernetes quantities: 500m, 32Gi, 2k. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(10) ** (-9 + 3 * index) for index, unit in enumerate("num")},
    **{unit: Decimal(10) ** (3 + 3 * index) for index, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (1 + index) for index, unit in enumerate("KMGTPE")},
}


def parse_quantity(text: str) -> float | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    return float(Decimal(digits) * _UNITS[unit or ""] * Decimal(10) ** int(exponent or 0))
