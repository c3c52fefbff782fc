"""`forerun models`: what can be run, what is here, and the disk that models and packed copies take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt

if TYPE_CHECKING:
    from forerun.drafting import learned as learned_files
    from forerun.model.packed.folder import PackedCopy


@dataclass(slots=True)
class Row:
    """A model that is known, is here, or of which there are packed copies."""

    name: str
    description: str
    nbytes: int
    licence: str
    path: Path | None
    here: str
    copies: list[PackedCopy]
    """Packed copies of its weights in the cache, one for each way of rounding."""
    learned: list[learned_files.LearnedFile] = field(default_factory=list)
    """What drafters learned while it ran with --learn."""

    @property
    def packed_nbytes(self) -> int:
        """Sum the bytes of the packed copies."""
        return sum(copy.nbytes for copy in self.copies)

    @property
    def learned_nbytes(self) -> int:
        """Sum the bytes of what drafters learned."""
        return sum(entry.nbytes for entry in self.learned)

    def document(self) -> dict[str, object]:
        """Convert the row to JSON values."""
        fields = (
            *("name", "description", "nbytes", "licence", "here"),
            *("packed_nbytes", "learned_nbytes"),
        )
        path = None if self.path is None else str(self.path)
        return {name: getattr(self, name) for name in fields} | {
            "path": path,
            "packed": [str(copy.path) for copy in self.copies],
        }


@opt.command()
@click.option(
    "--clear-cache", is_flag=True, help="Delete all packed copies, as `rm --packed` does."
)
@opt.as_json
def command(
    clear_cache: bool,
    as_json: bool,
) -> None:
    """List models: known by name, in the cache, in the Hugging Face cache; and the disk they take.

    A packed copy is a model's weights as the CPU kernels want them, kept so that the next start is quick. Copies
    take 5 GB at most (FORERUN_CACHE_LIMIT=2GB changes that): the copy that was used longest ago goes first.
    """
    from forerun.cli import console
    from forerun.core import sizes
    from forerun.model.packed import folder as packed

    if clear_cache:
        freed = packed.remove(packed.default_folder().entries())
        console.note(f"deleted {sizes.format_size(freed)} of packed copies; models stay")
    models, folder = rows(), packed.default_folder()
    packed_nbytes = sum(row.packed_nbytes for row in models)
    if as_json:
        taken = {
            "path": str(folder.path),
            "files": sum(len(row.copies) for row in models),
            "nbytes": packed_nbytes,
            "limit_nbytes": folder.limit_nbytes,
        }
        console.print_json({"models": [row.document() for row in models], "packed": taken})
        return
    _print(models, packed_nbytes, folder.limit_nbytes)


def rows() -> list[Row]:
    """List the models of both caches, then others that left files in ours. Raises LoadError."""
    from forerun.drafting import learned as learned_files
    from forerun.hub import hugging_face, names
    from forerun.model.packed import folder as packed

    models = [
        Row(m.name, m.description, m.nbytes, m.licence, m.path, "yes" if m.path else "no", [])
        for m in names.known_models()
    ]
    models += [
        Row(m.name, "in the Hugging Face cache", m.nbytes, "unknown", m.path, "hub", [])
        for m in hugging_face.models()
    ]
    others: dict[Path | None, Row] = {}

    def owner(model: Path | None) -> Row:
        return _owner(models, model) or others.setdefault(model, _elsewhere(model))

    for entry, model in packed.copies():
        owner(model).copies.append(entry)
    for learned in learned_files.entries():
        owner(learned.model).learned.append(learned)
    return models + sorted(others.values(), key=lambda row: row.name)


def _owner(models: Sequence[Row], model: Path | None) -> Row | None:
    for row in models:
        if row.path is not None and model is not None and model.is_relative_to(row.path.resolve()):
            return row
    return None


def _elsewhere(model: Path | None) -> Row:
    """Make the row of a model outside of any cache, or of copies that are damaged or unfinished."""
    from forerun.core.files import regular
    from forerun.hub import names

    if model is None:
        return Row("(unreadable)", "damaged or unfinished files", 0, "", None, "no", [])
    sizes = [stat.st_size for _, stat in regular([model, *model.glob("*.safetensors")])]
    nbytes, here = sum(sizes), "path" if sizes else "gone"
    return Row(model.stem, f"at {model}", nbytes, names.licence(model), model, here, [])


def _print(models: Sequence[Row], packed_nbytes: int, limit_nbytes: int) -> None:
    from forerun.cli import tables
    from forerun.core import sizes

    columns = ("model", "here", "size", "packed", "licence")
    lines = [
        (
            row.name,
            row.here,
            sizes.format_size(row.nbytes) if row.nbytes else "",
            sizes.format_size(row.packed_nbytes) if row.copies else "",
            row.licence,
        )
        for row in models
    ]
    here_nbytes = sum(row.nbytes for row in models if row.here in ("yes", "hub"))
    lines.append(
        ("all here", "", sizes.format_size(here_nbytes), sizes.format_size(packed_nbytes), "")
    )
    out = tables.report()
    out.print(tables.table(columns, lines, num_left=len(columns)))
    out.print(
        f"\npacked copies: {sizes.format_size(packed_nbytes)} of at most {sizes.format_size(limit_nbytes)}"
    )
    for row in models:
        if row.learned:
            taken = sizes.format_size(row.learned_nbytes)
            out.print(f"{row.name}: {taken} learned (--learn), forerun rm --learned deletes it")
        if row.here == "no" and row.nbytes:
            out.print(f"forerun pull {row.name} fetches it: {row.description}")
    out.print("forerun rm NAME deletes a model, forerun rm --packed [NAME] packed copies")
