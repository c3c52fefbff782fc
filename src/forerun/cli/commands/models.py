"""`forerun models`: what can be run, what is here, and the disk that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.cli import options as opt


@dataclass(frozen=True, slots=True)
class Row:
    """A model that is known or is here."""

    name: str
    description: str
    nbytes: int
    licence: str
    path: Path | None
    here: str

    def document(self) -> dict[str, object]:
        """Convert the row to JSON values."""
        fields = ("name", "description", "nbytes", "licence", "here")
        path = None if self.path is None else str(self.path)
        return {name: getattr(self, name) for name in fields} | {"path": path}


@opt.command()
@opt.as_json
def command(as_json: bool) -> None:
    """List models: known by name, in the cache, in the Hugging Face cache; and the disk they take."""
    from forerun.cli import console

    models = rows()
    if as_json:
        console.print_json({"models": [row.document() for row in models]})
        return
    _print(models)


def rows() -> list[Row]:
    """List the models of both caches. Raises LoadError."""
    from forerun.hub import hugging_face, names

    models = [
        Row(m.name, m.description, m.nbytes, m.licence, m.path, "yes" if m.path else "no")
        for m in names.known_models()
    ]
    models += [
        Row(m.name, "in the Hugging Face cache", m.nbytes, "unknown", m.path, "hub")
        for m in hugging_face.models()
    ]
    return models


def _print(models: Sequence[Row]) -> None:
    from forerun.cli import tables
    from forerun.core import sizes

    columns = ("model", "here", "size", "licence")
    lines = [
        (row.name, row.here, sizes.format_size(row.nbytes) if row.nbytes else "", row.licence)
        for row in models
    ]
    here_nbytes = sum(row.nbytes for row in models if row.here in ("yes", "hub"))
    lines.append(("all here", "", sizes.format_size(here_nbytes), ""))
    out = tables.report()
    out.print(tables.table(columns, lines, num_left=len(columns)))
    for row in models:
        if row.here == "no" and row.nbytes:
            out.print(f"forerun pull {row.name} fetches it: {row.description}")
    out.print("forerun rm NAME deletes a model")
