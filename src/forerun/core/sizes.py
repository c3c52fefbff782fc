"""Sizes in bytes, as people write and read them: 500MB, 5 GB."""

from __future__ import annotations

import re
from typing import Final

_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse(text: str) -> int:
    """Return the bytes a text stands for; units are decimal, with an i binary. Raises ValueError.

    >>> parse("5 GB"), parse("1.5k"), parse("1GiB")
    (5000000000, 1500, 1073741824)
    """
    matched = _SIZE.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"a size is a number and a unit, such as 500MB or 5GB, got {text!r}")
    number, unit, binary = matched.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse_budget(given: str | int) -> int:
    """Return the bytes of a budget: a whole number of bytes, or a number above 0 and an exact unit.

    Here nothing is guessed: what stands for another size than was meant would be kept to as strictly.
    Raises ValueError that goes on where the given text ends: "has no unit: ...".

    >>> parse_budget("600MiB"), parse_budget("0.5 GB"), parse_budget(600 << 20)
    (629145600, 500000000, 629145600)
    """
    text = given.strip() if isinstance(given, str) else ""
    if isinstance(given, int) and not isinstance(given, bool):
        nbytes = given
    elif _BUDGET.fullmatch(text):
        nbytes = parse(text)
    else:
        raise ValueError(_what_is_wrong(text))
    if nbytes <= 0:
        raise ValueError("is not above 0")
    return nbytes


def _what_is_wrong(text: str) -> str:
    """Return why a text is not a budget, and how it might be meant."""
    units = "units: B, kB, MB, GB, TB of 1000, KiB, MiB, GiB, TiB of 1024"
    if _NUMBER.fullmatch(text):
        return f"has no unit: write {text}MiB or {text}MB"
    if text.startswith("-"):
        return "is not above 0"
    if (like := _SIZE.fullmatch(text)) is not None and like[2]:
        letter = "k" if like[2] in "kK" and not like[3] else like[2].upper()
        unit = f"{letter}{like[3] and 'i'}B"
        return f"has no exact unit: write {like[1]}{unit} ({units})"
    return f"is not a size ({units})"


def format_size(nbytes: float) -> str:
    """Three digits and a decimal unit.

    >>> format_size(98_362_432), format_size(1_156_004_628), format_size(5_000_000_000), format_size(0)
    ('98.4 MB', '1.16 GB', '5 GB', '0 B')
    """
    unit, number = "B", float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            break
        number /= 1000
    return f"{number:.3g} {unit}"


def mebibytes(nbytes: float) -> str:
    """Format bytes in MiB, the unit of memory plans.

    >>> mebibytes(300 << 20), mebibytes(98_362_432), mebibytes(12_345)
    ('300 MiB', '93.8 MiB', '0.0118 MiB')
    """
    number = nbytes / (1 << 20)
    return f"{number:.0f} MiB" if number >= 100 else f"{number:.3g} MiB"


def shown_up(nbytes: int) -> str:
    """Format bytes in MiB rounded up, so that it is enough as a budget.

    >>> shown_up(600 << 20), shown_up((600 << 20) + 1)
    ('600MiB', '601MiB')
    """
    return f"{-(-nbytes // (1 << 20))}MiB"
