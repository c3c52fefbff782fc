"""Sizes in bytes, as people write and read them: 500MB, 5 GB."""

from __future__ import annotations

import re
from typing import Final

_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse(text: str) -> int:
    """The bytes a text stands for; units are decimal, with an i binary. Raises ValueError.

    >>> parse("5 GB"), parse("1.5k"), parse("1GiB")
    (5000000000, 1500, 1073741824)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"a size is a number and a unit, such as 500MB or 5GB, got {text!r}")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def shown(nbytes: float) -> str:
    """Three digits and a decimal unit.

    >>> shown(98_362_432), shown(1_156_004_628), shown(5_000_000_000), shown(0)
    ('98 MB', '1.16 GB', '5 GB', '0 B')
    """
    unit, number = "B", float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"
