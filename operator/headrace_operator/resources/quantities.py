"""Kubernetes quantities: 500m, 10Gi, 3."""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}


def parse_quantity(text: str) -> Decimal:
    """Return the value of a Kubernetes quantity. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(m|[kMGTP]|[KMGTP]i)?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity like 500m, 10Gi or 3")
    number, suffix = match.groups()
    if suffix == "m":
        return Decimal(number) / 1000
    return Decimal(number) * _SUFFIXES[suffix or ""]
