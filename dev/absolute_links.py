"""Make the README's links absolute: `python -m dev.absolute_links`, before a release is built from a checkout.

In the repository they are relative, so that a clone and a mirror show its pictures. A package index shows the README of
a wheel alone.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
REPOSITORY = "https://github.com/forerun/forerun/blob/main/"
PICTURES = "https://raw.githubusercontent.com/forerun/forerun/main/"
LINK = re.compile(r"(^\[[^\]\n]+\]: |\]\()(?!https?:|#)([^)\s]+)", re.MULTILINE)


def absolute(text: str) -> str:
    """Return a page with its relative links absolute.

    >>> absolute("[models]: docs/models.md")
    '[models]: https://github.com/forerun/forerun/blob/main/docs/models.md'
    """

    def one(found: re.Match[str]) -> str:
        where = PICTURES if found[2].endswith(".svg") else REPOSITORY
        return f"{found[1]}{where}{found[2]}"

    return LINK.sub(one, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8")), encoding="utf-8")
