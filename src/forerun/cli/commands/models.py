"""`forerun models`: what can be run, what is here, and the disk that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.cli import options as opt

if TYPE_CHECKING:
    from forerun.hub.machine import Measured
    from forerun.hub.shortnames import ShortName

_FITS = {True: "yes", False: "no", None: "?"}


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
    """List models: known by name, in the cache, in the Hugging Face cache; and the disk they take.

    Then names that can be fetched, with what fits this machine's free memory, what drafts for each, and the speed to
    expect, once `forerun bench kernels` was run here.
    """
    from forerun.cli import console
    from forerun.hub import machine, shortnames
    from forerun.system.device import available_nbytes

    models, names, nbytes = rows(), shortnames.table(), available_nbytes()
    measured = machine.read()
    if as_json:
        documents = [asdict(each) | _for_this_machine(each, nbytes, measured) for each in names]
        console.print_json({"models": [row.document() for row in models], "names": documents})
        return
    _print(models)
    _print_names(names, nbytes, measured)


def _for_this_machine(
    name: ShortName, nbytes: int | None, measured: Measured | None
) -> dict[str, object]:
    speed = None if measured is None else round(measured.tok_s(name.nbytes), 1)
    return {"fits": name.fits(nbytes), "drafter": name.drafter(), "expected_tok_s": speed}


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


def _print_names(names: Sequence[ShortName], nbytes: int | None, measured: Measured | None) -> None:
    from huggingface_hub import constants

    from forerun.cli import tables
    from forerun.core import sizes

    columns = ["name", "GB", "fits", "licence", "drafter"]
    lines = [
        [each.name, f"{each.gb:.1f}", _FITS[each.fits(nbytes)], each.licence, each.drafter()]
        for each in names
    ]
    if measured is not None:
        columns.insert(2, "tok/s")
        for line, each in zip(lines, names, strict=True):
            line.insert(2, f"{measured.tok_s(each.nbytes):.1f}")
    free = "" if nbytes is None else f" ({sizes.format_size(nbytes)} of memory are free)"
    out = tables.report()
    out.print(f"\nNames that forerun pull fetches from the Hugging Face Hub{free}:\n")
    out.print(tables.table(columns, lines, num_left=len(columns)))
    out.print("ships: drafts at once. published: forerun pull NAME --drafter fetches it.")
    if measured is None:
        out.print("forerun bench kernels measures this machine: then the speed to expect is here.")
    else:
        out.print(
            f"tok/s: without drafts, at the {measured.gb_s:.1f} GB/s that bench kernels measured of {measured.model}; "
            "mixtures of experts read less of their weights and are faster."
        )
    if constants.HF_HUB_OFFLINE:
        out.print("HF_HUB_OFFLINE is set: nothing is fetched.")
