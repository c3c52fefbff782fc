"""`forerun pull`: fetch a model, or what is published to draft for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from forerun.hub.published import Published


@opt.command()
@opt.argument(
    "model", default=DEFAULT_MODEL, help="A name that forerun models lists, or a hub name."
)
@click.option(
    "--drafter", "wants_drafter", is_flag=True, help="Fetch what is published to draft for it."
)
@opt.as_json
def command(model: str, wants_drafter: bool, as_json: bool) -> None:
    """Fetch a model, check it, keep it in the cache; harmless when it is there already.

    With --drafter not the model but a head or smaller model that is published for it; `auto` then drafts with it.
    """
    from forerun.cli import console
    from forerun.hub.names import pull

    document: dict[str, object] = {"model": model}
    name, path = model, None
    if wants_drafter:
        published = _published(model)
        name, path = published.drafter, published.here()
        document |= {"drafter": name, "kind": published.kind, "licence": published.licence}
        console.note(f"{published} drafts for {published.target}")
    if path is None:
        with console.working(f"fetching {name}"):
            path = pull(name)
    if as_json:
        console.print_json({**document, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)


def _published(model: str) -> Published:
    """Return the first published drafter for a model, which need not be here. Raises LoadError if there is none."""
    from forerun.core.errors import LoadError
    from forerun.hub import shortnames
    from forerun.hub.names import check_name, here
    from forerun.hub.published import for_model
    from forerun.weights.checkpoint import open_checkpoint
    from forerun.weights.identity import Identity, identity_of, plain

    check_name(model)
    path = here(model)
    if path is not None:
        identity = identity_of(open_checkpoint(path))
    else:
        short = shortnames.find(model)
        identity = Identity((plain(model),)) if short is None else short.identity()
    if found := for_model(identity):
        return found[0]
    raise LoadError(
        f"no published drafter is known for {', '.join(identity.names)}; forerun tune makes one from its answers"
    )
