"""What passes cost, as `bench kernels --out` saved it: v(k) for any number of rows, for tables and pictures.

A document of a peer is read as well: `{"peer": NAME, "provenance": {"model": ...}, "rows": [{"k", "ms"}, ...]}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forerun._native import CostCurve
from forerun.core.errors import ConfigError
from forerun.lab.bench.measurement import Provenance


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Milliseconds of a pass by its rows, one row among them, in ascending order."""

    provenance: Provenance
    ms: dict[int, float]
    peer: str | None = None

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
        """Return the cost of a pass over one of one row: linear between two measured widths, and beyond the last."""
        return CostCurve(self.ms).v(rows)


def read(path: Path) -> list[PassCosts]:
    """Read the costs in a file, one a system, above the context of its first pass of one row. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        one = next(row for row in document["rows"] if row["k"] == 1)
        systems: dict[str | None, dict[int, float]] = {}
        for row in document["rows"]:
            if all(row.get(key) == one.get(key) for key in ("context", "num_seqs")):
                peer = row.get("peer", document.get("peer"))
                systems.setdefault(peer, {})[int(row["k"])] = float(row["ms"])
        if not all(min(ms.values()) > 0 for ms in systems.values()):
            raise ValueError("a pass takes no time")
        origin = document["provenance"]
        return [PassCosts(origin, dict(sorted(ms.items())), peer) for peer, ms in systems.items()]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
        raise ConfigError(
            f"{path} holds no pass costs (forerun bench kernels --out writes them): {error}"
        ) from error
