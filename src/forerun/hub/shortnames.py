"""Short names of models that people run, as Ollama and LM Studio have them: `llama3.2`, `qwen3:8b`.

`shortnames.jsonl` is the table, a line for each model: its `names`, the first of which is listed; `model`, the name of
the Hugging Face Hub; `file`, whose size is `gb`; `page`, the repository's or a catalogue that has both; `ships`, the
network of ours that drafts for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.core.errors import LoadError
from forerun.hub.hugging_face import HubName

if TYPE_CHECKING:
    from forerun.weights.identity import Identity

_FIELDS = ("names", "model", "file", "gb", "licence", "page")
_BESIDE_NBYTES = 1_000_000_000
"""Bytes that a model needs besides its file: the program, and keys and values of a conversation."""


@dataclass(frozen=True, slots=True)
class ShortName:
    """A model of the hub that has short names."""

    names: tuple[str, ...]
    model: str
    file: str
    gb: float
    licence: str
    page: str
    ships: str | None = None

    @property
    def name(self) -> str:
        """The name that is listed."""
        return self.names[0]

    @property
    def hub_name(self) -> HubName:
        """The repository, and which of its GGUFs."""
        found = HubName.parse(self.model)
        assert found is not None
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the file, to about 5 %."""
        return round(self.gb * 1e9)

    def fits(self, nbytes: int | None) -> bool | None:
        """Tell whether so much memory holds the model and a conversation; None where it is unknown."""
        return None if nbytes is None else self.nbytes + _BESIDE_NBYTES <= nbytes

    def identity(self) -> Identity:
        """Return the model's own name, by which drafters are found."""
        from forerun.weights.identity import Identity, plain  # late, as its package takes a while

        return Identity((plain(self.hub_name.repo),))

    def drafter(self) -> str:
        """Say what drafts for it: what ships, what is published and can be fetched, or `recycling`."""
        if self.ships is not None:
            return "mlp_speculator, ships"
        from forerun.hub import published

        found = published.for_model(self.identity())
        return f"{found[0].kind}, published" if found else "recycling"

    def __str__(self) -> str:
        return f"{self.model}, {self.gb:.1f} GB, licence {self.licence}"


@cache
def table() -> tuple[ShortName, ...]:
    """Read the table. Raises LoadError that names a field which is missing."""
    text = Path(__file__).with_name("shortnames.jsonl").read_text(encoding="utf-8")
    return tuple(parsed(json.loads(line), i) for i, line in enumerate(text.splitlines(), 1))


def parsed(row: dict[str, Any], number: int) -> ShortName:
    """Check one line of the table. Raises LoadError."""
    if missing := [key for key in _FIELDS if not row.get(key)]:
        raise LoadError(f"line {number} of the table of short names must have '{missing[0]}'")
    if HubName.parse(row["model"]) is None:
        raise LoadError(
            f"line {number} of the table of short names: {row['model']!r} is not a hub name"
        )
    return ShortName(**row | {"names": tuple(row["names"])})


def find(name: str) -> ShortName | None:
    """Return what a name stands for, as Ollama and LM Studio write it: `qwen3:8b`, `qwen3-8b`, `Qwen3-8B`."""
    return _by_name().get(name.lower().removesuffix(":latest"))


@cache
def _by_name() -> dict[str, ShortName]:
    found: dict[str, ShortName] = {}
    for row in table():
        dashed = [name.replace(":", "-") for name in row.names]
        repository = row.hub_name.repo.rpartition("/")[2].lower().removesuffix("-gguf")
        for name in (*row.names, *dashed, repository):
            found.setdefault(name, row)
    return found


def names() -> list[str]:
    """List all short names, as the table has them."""
    return [name for row in table() for name in row.names]
