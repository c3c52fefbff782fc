"""What passes cost, as `bench kernels --out` saved it: v(k) for any number of rows, for tables and pictures.

A document of a peer is read as well: `{"peer": NAME, "provenance": {"model": ...}, "rows": [{"k", "ms"}, ...]}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forerun.bench.record import Provenance
from forerun.core.costs import CostCurve
from forerun.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds of a pass by its rows, one row among them, in ascending order."""

    provenance: Provenance
    ms: dict[int, float]
    peer: str | None = None
    bandwidth_gb_s: float | None = None
    """Of a plain read of the weights in the same run."""
    weights_mb: float | None = None
    mflop_row: float | None = None
    """Operations of one row, a multiply-add being two."""

    @property
    def model(self) -> str:
        """The model's name, as measurements of it give it."""
        return str(self.provenance.get("model"))

    @property
    def name(self) -> str:
        """Whose passes these are."""
        return self.model if self.peer is None else f"{self.peer}, {self.model}"

    @property
    def widest(self) -> int:
        """The most rows that were measured."""
        return max(self.ms)

    def v(self, rows: float) -> float:
        """A pass of so many rows over one of one row: straight between two measured widths, and on beyond the last."""
        return CostCurve(self.ms).v(rows)


def is_document(path: Path) -> bool:
    """True for a file that holds prices rather than measurements: one JSON document, not a line each."""
    return path.suffix == ".json"


def read(path: Path) -> Prices:
    """The prices of a file. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = {int(row["k"]): float(row["ms"]) for row in document["rows"]}
        if 1 not in rows or min(rows.values()) <= 0:
            raise ValueError("no pass of one row")
        return Prices(
            document["provenance"],
            dict(sorted(rows.items())),
            *(document.get(key) for key in ("peer", "bandwidth_gb_s", "weights_mb", "mflop_row")),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} holds no pass costs (forerun bench kernels --out writes them): {error}"
        ) from error
