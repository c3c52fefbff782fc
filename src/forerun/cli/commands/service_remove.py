"""`forerun service remove`: end the server that runs as a service, and delete its unit."""

from __future__ import annotations

from forerun.cli import options as opt


@opt.command()
def command() -> None:
    """Stop the service and delete what `forerun service install` wrote; models stay."""
    from forerun.cli import console, user_unit

    console.note(f"stopped and deleted: {user_unit.remove()}", dim=True)
