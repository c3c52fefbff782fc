"""`forerun service install`: write a user's unit of `forerun serve` and start it."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt


@opt.command()
@opt.argument("model", required=True, help="The model, as for serve.")
@opt.argument("serve_words", nargs=-1, metavar="[-- WORDS]", help="Options of forerun serve.")
@click.option("--print", "shows", is_flag=True, help="Only show the unit.")
def command(model: str, serve_words: tuple[str, ...], shows: bool) -> None:
    """Start `forerun serve MODEL` now and with every session of yours: a systemd unit of the user, on Linux.

    systemctl --user status forerun says how it is, journalctl --user -u forerun what it wrote.
    """
    from forerun.cli import console, user_unit
    from forerun.cli.commands import serve

    place = Path(model)
    name = str(place.resolve()) if place.exists() else model
    words = [name, *serve_words]
    with serve.command.make_context(
        "serve", [*words]
    ):  # a mistyped option is told here, not in a journal
        opt.offer(name)
    if shows:
        click.echo(user_unit.unit(words), nl=False)
        return
    console.note(f"written and started: {user_unit.install(words)}", dim=True)
    console.note(
        "loginctl enable-linger keeps it running while you are not logged in; "
        "forerun service remove ends it",
        dim=True,
    )
