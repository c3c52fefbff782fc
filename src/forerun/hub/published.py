"""Drafters that others publish for a model: which there are, and which of them are on this disk.

`drafters.jsonl` is the table, a line for each pair: `target` and `drafter` are names of the Hugging Face Hub, `kind` is
the drafter of ours that reads it, `licence` and `mb` are null where the drafter's page has to be asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forerun.core.errors import LoadError
from forerun.hub import hugging_face
from forerun.hub.hugging_face import HubName
from forerun.weights.identity import Identity, plain

KINDS = ("eagle3", "dflash", "mlp_speculator", "gemma4_assistant", "draft_model")
"""The drafters that read a published one; the first is preferred, since a head costs less than a model."""


@dataclass(frozen=True, slots=True)
class Published:
    """A drafter that is published for a model."""

    target: str
    drafter: str
    kind: str
    licence: str | None
    mb: int | None

    @property
    def spec(self) -> str:
        """How `-d` names it, once it is on this disk."""
        return f"{self.kind}:model={self.drafter}"

    def here(self) -> Path | None:
        """Return where it lies if it was fetched before."""
        name = HubName.parse(self.drafter)
        if name is None or not hugging_face.has_repo(name):
            return None
        return hugging_face.cached(name)

    def __str__(self) -> str:
        size = "" if self.mb is None else f", {self.mb} MB"
        return f"{self.drafter} ({self.kind}{size})"


@cache
def table() -> tuple[Published, ...]:
    """Read the table. Raises LoadError for a line of an unknown kind, and naming a field that is missing."""
    text = Path(__file__).with_name("drafters.jsonl").read_text(encoding="utf-8")
    return tuple(parsed(json.loads(line), i) for i, line in enumerate(text.splitlines(), 1))


def parsed(row: dict[str, object], number: int) -> Published:
    """Check one line of the table. Raises LoadError."""
    where = f"line {number} of the table of published drafters"
    if missing := [key for key in ("target", "drafter", "kind") if not row.get(key)]:
        raise LoadError(f"{where} must have '{missing[0]}'")
    if row["kind"] not in KINDS:
        raise LoadError(f"{where}: kind {row['kind']!r} is unknown (allowed: {', '.join(KINDS)})")
    fields = (row.get(key) for key in ("target", "drafter", "kind", "licence", "mb"))
    return Published(*fields)  # type: ignore[arg-type]  # checked by the tests of the table


def for_model(model: Identity) -> list[Published]:
    """Return what is published for a model, or else for a model that it was fine-tuned from; heads before models."""
    for names in (model.names, model.bases):
        if found := [row for row in table() if plain(row.target) in names]:
            return sorted(found, key=lambda row: KINDS.index(row.kind))
    return []
