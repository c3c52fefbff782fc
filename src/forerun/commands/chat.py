"""`forerun chat`: a conversation in the terminal. Earlier turns stay in the cache."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.cli.lines import Lines, history
from forerun.cli.slash import Slash, help_text
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, ForerunError

if TYPE_CHECKING:
    from forerun.cli.conversation import Conversation
    from forerun.core.structured import StructuredOutputsParams


@opt.command()
@opt.engine(without=("max_num_seqs",), max_num_seqs=1)
@opt.answering(max_tokens=512)
@opt.system
@click.option("-p", "--prompt", "first", help="The first message.")
@opt.form()
@click.option("--no-history", is_flag=True, help="Neither read nor keep what is typed.")
@click.option("--url", metavar="URL", help="A server that answers instead: http://HOST:PORT/v1.")
@click.option("--api-key", metavar="KEY", help="The key that it asks for.")
def command(
    config: EngineConfig,
    params: opt.Params,
    system: str | None,
    first: str | None,
    form: StructuredOutputsParams | None,
    no_history: bool,
    url: str | None,
    api_key: str | None,
) -> None:
    """Talk with the model; tokens the drafter guessed are tinted. /help lists the commands inside.

    Answers are sampled as the model's own settings say, greedily where there are none; --temperature and the like
    override them. An answer has at most --max-tokens tokens (512); Enter goes on with one that was cut. Ctrl-C stops
    an answer, Ctrl-D ends the chat. Text that is piped in is one message a line; the first error or Ctrl-C ends it.
    With --url any server of OpenAI's API answers, and --model is its name there.
    """
    from forerun.cli import console
    from forerun.cli.answerers import LocalModel, RemoteModel
    from forerun.cli.conversation import Conversation
    from forerun.hub.names import cache_root
    from forerun.server.client import Remote

    lines = Lines()
    model: LocalModel | RemoteModel
    if url is not None:
        opt.refuse_given(*opt.FORM)
        named = opt.typed_model(config)
        model = RemoteModel.of(Remote.of(url, api_key), named, params.body())
    elif api_key is not None:
        raise ConfigError("--api-key is for a server: give its --url")
    else:
        llm = opt.load(config)
        hint = "; Enter goes on" if lines.is_terminal else ""
        model = LocalModel(llm, replace(params(llm), structured_outputs=form), hint)
    talk = Conversation(model)
    talk.start(system)
    if lines.is_terminal:
        console.note(f"{model.title()}\n/help lists commands, Ctrl-D ends", dim=True)
    kept = history(cache_root() / "chat_history") if lines.is_terminal and not no_history else None
    if first is not None:
        console.note(talk.say(first), dim=True)
    with kept or nullcontext(), suppress(EOFError):
        while True:
            _turn(lines, talk)
    if talk.num_answers:
        console.note(talk.summary(), dim=True)


def _turn(lines: Lines, talk: Conversation) -> None:
    """Read a turn and do what it asks for. Raises EOFError where the chat ends."""
    from forerun.cli import console

    try:
        turn = lines.turn()
    except KeyboardInterrupt:
        if not lines.is_terminal:
            raise
        console.note("\nCtrl-D or /exit ends the chat", dim=True)
        return
    if not turn and (talk.cut is None or not lines.is_terminal):
        return
    try:
        console.note(_take(turn, talk), dim=True)
        if talk.was_stopped and not lines.is_terminal:
            raise KeyboardInterrupt
    except ForerunError as error:
        if not lines.is_terminal:
            raise
        console.note(f"error: {error}", fg="red")
    except KeyboardInterrupt:  # before the answer began, or in a pipe, where it ends the chat
        if not lines.is_terminal:
            raise
        console.note("stopped", dim=True)


def _take(turn: str, talk: Conversation) -> str:
    """Do what a turn asks for and return a line about it. Raises EOFError for /exit."""
    if not turn:
        return talk.go_on()
    if not turn.startswith("/"):
        return talk.say(turn)
    slash = Slash.parse(turn)
    if slash.name == "exit":
        raise EOFError
    if slash.name == "help":
        return help_text()
    if slash.name == "clear":
        return talk.clear()
    method = {
        "system": talk.system,
        "drafter": talk.model.drafter,
        "save": talk.save,
        "load": talk.load,
    }
    return method[slash.name](slash.argument)
