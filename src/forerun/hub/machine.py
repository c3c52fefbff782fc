"""What `forerun bench kernels` measured on this machine last: from it follows how fast other models will be."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from forerun.hub.names import cache_root
from forerun.system import files

LEAST_NBYTES = 50_000_000
"""Weights of a smaller model stay in the processor's caches, and say nothing of others."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A pass of one row: the weights' bytes that it reads a second, in GB, and of which model."""

    model: str
    gb_s: float

    def tok_s(self, nbytes: int) -> float:
        """Return the tokens a second of plain decoding to expect of a model whose passes read so many bytes.

        >>> Measured("m", 20.0).tok_s(2_000_000_000)
        10.0
        """
        return self.gb_s * 1e9 / nbytes


def path() -> Path:
    """Return where it lies; it may not exist yet."""
    return cache_root() / "machine.json"


def keep(measured: Measured, weights_nbytes: float) -> None:
    """Keep it in the place of what was measured before, unless the model is too small. Raises OSError."""
    if weights_nbytes >= LEAST_NBYTES:
        files.replace(path(), json.dumps(asdict(measured)).encode())


def read() -> Measured | None:
    """Return it; None if nothing was measured."""
    try:
        given = json.loads(path().read_text("utf-8"))
        found = Measured(str(given["model"]), float(given["gb_s"]))
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return found if found.gb_s > 0 else None
