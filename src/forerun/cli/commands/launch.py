"""`forerun launch`: a coding agent with a model of this machine, set up and started by one command."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from forerun.cli import console
from forerun.cli import options as opt
from forerun.cli.clients import CLIENTS, Client
from forerun.cli.commands.warm import read_ahead
from forerun.cli.help import Option
from forerun.cli.served import served
from forerun.core.config import ALL, EngineConfig
from forerun.core.errors import ConfigError, ForerunError, unknown

if TYPE_CHECKING:
    from forerun.server.client import Remote

FOUND_S = 2.0
"""For a server to say what it serves."""


@opt.command()
@opt.engine(prompt_cache=ALL)
@opt.argument("client", metavar="CLIENT", help=f"{', '.join(CLIENTS)}.")
@opt.argument("client_words", nargs=-1, metavar="[-- WORDS]", help="Options of the client itself.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    cls=Option,
    group="Listening",
    help="The server's.",
)
@click.option(
    "--print",
    "shows",
    is_flag=True,
    cls=Option,
    group="Output",
    help="Only show what would be written and run.",
)
def command(
    config: EngineConfig, client: str, client_words: tuple[str, ...], port: int, shows: bool
) -> None:
    """Start a coding agent on a model of this machine.

    The server at --port is used if there is one; else one is started with --model, and ends with the client. A copy of
    what was in the client's configuration is kept next to it, once. The server reads ahead what the client sent before
    a user's words last time.
    """
    if client not in CLIENTS:
        raise ConfigError(unknown("client", client, CLIENTS))
    chosen = CLIENTS[client]
    url = f"http://127.0.0.1:{port}"
    if shows:
        name = _name(remote) if (remote := _running(url)) else _name_of(config.model)
        click.echo(_shown(chosen, url, name, client_words), nl=False)
        return
    if shutil.which(chosen.program) is None:
        raise ConfigError(
            f"{client} is not installed: there is no {chosen.program} on the PATH; its maker installs it by "
            f"`{chosen.package}`, and `forerun launch {client} --print` shows the configuration"
        )
    with _server(config, url) as remote:
        name = _name(remote)
        if path := chosen.save(url, name):
            console.note(f"written: {path}", dim=True)
        _warm(client, remote)
        code = _run(chosen, url, name, client_words)
    sys.exit(code)


def _run(client: Client, url: str, model: str, words: tuple[str, ...]) -> int:
    """Run the client in this terminal; return its exit code. Raises ConfigError for one that does not start."""
    environment = {**os.environ, **client.environment(url, model)}
    own = client.filled(client.words, url, model)
    calls = [client.filled(client.first, url, model)] if client.first else []
    code, before = 0, signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the client's
    try:
        for given in (*calls, [*own, *words]):
            code = subprocess.run([client.program, *given], env=environment, check=False).returncode
            if code:
                break
    except OSError as error:
        raise ConfigError(f"{client.program} cannot be started: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return code


def _shown(client: Client, url: str, model: str, words: tuple[str, ...]) -> str:
    """Write what would be done, as lines of a shell below the file's text."""
    lines = []
    if made := client.configuration(url, model):
        lines += [f"# {made[0]}", made[1]]
    if client.first:
        lines.append(shlex.join([client.program, *client.filled(client.first, url, model)]))
    given = [
        f"{name}={shlex.quote(value)}" for name, value in client.environment(url, model).items()
    ]
    call = shlex.join([client.program, *client.filled(client.words, url, model), *words])
    return "\n".join([*lines, " ".join([*given, call])]) + "\n"


@contextmanager
def _server(config: EngineConfig, url: str) -> Iterator[Remote]:
    """Find the server, or run one until the client has ended. Raises ConfigError, ForerunError."""
    if (remote := _running(url)) is not None:
        asked = opt.given_models()
        serves = [str(one["id"]) for one in remote.models()]
        if asked and _name_of(asked[0]) not in serves:
            raise ConfigError(
                f"the server at {url} serves {', '.join(serves)}: leave out --model, or give another --port"
            )
        console.note(f"found: {url}, {', '.join(serves)}", dim=True)
        yield replace(remote, name=serves[0])
        return
    opt.offer(config.model)
    console.note(f"starting forerun serve {config.model}, which ends with the client", dim=True)
    port = url.rpartition(":")[2]
    with served([config.model, *opt.given_flags(), "--port", port]) as started:
        yield started


def _running(url: str) -> Remote | None:
    """Return the server at an address; None if there is none. Raises ConfigError for one that is not like ours."""
    from forerun.server.client import Remote, RemoteError

    remote = replace(Remote.of(url), timeout_s=FOUND_S)
    try:
        remote.models()
    except RemoteError as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return None
        raise ConfigError(
            f"what listens at {url} does not answer: {error}; give another --port"
        ) from error
    return Remote.of(url)


def _name(remote: Remote) -> str:
    return remote.name or str(remote.models()[0]["id"])


def _name_of(model: str) -> str:
    """Name a model as a server of it does; one that is not here by its own words."""
    from forerun.hub import names

    path = names.here(model)
    return model if path is None else names.name_of(path)


def _warm(client: str, remote: Remote) -> None:
    """Have the server read what the client sent last, if it ever did."""
    from forerun.server import instructions

    name = instructions.newest(client)
    if name is None:
        console.note(f"the first prompt of {client} is long: it is read once, then kept", dim=True)
        return
    try:
        read_ahead(remote, instructions.read(name), client)
    except (
        ForerunError
    ) as error:  # such as a context that is too short for it: the client will say so
        console.note(f"{client} is not read ahead: {error}", dim=True)
