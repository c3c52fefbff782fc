"""`forerun chat`: a conversation in the terminal. Earlier turns stay in the cache."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.cli.chat_input import ChatInput, history, history_file
from forerun.core.config import SHARED, EngineConfig
from forerun.core.errors import ConfigError, ForerunError
from forerun.core.options import flags_of

if TYPE_CHECKING:
    from forerun.cli.conversation import Conversation
    from forerun.core.structured import StructuredOutputsParams


@opt.command()
@opt.engine(without=("max_num_seqs",), max_num_seqs=1, prompt_cache=SHARED)
@opt.answering(max_tokens=512)
@opt.system
@opt.template
@click.option("-p", "--prompt", "first", help="The first message.")
@opt.form()
@opt.no_prompt_cache
@click.option("--no-history", is_flag=True, help="Neither read nor keep what is typed.")
@click.option("--url", metavar="URL", help="A server that answers instead: http://HOST:PORT/v1.")
@click.option("--api-key", metavar="KEY", help="The API key of that server.")
def command(
    config: EngineConfig,
    params: opt.Params,
    system: str | None,
    chat_template: str | None,
    first: str | None,
    form: StructuredOutputsParams | None,
    no_prompt_cache: bool,
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
    from forerun.cli.chat_models import ChatModel, LocalModel, RemoteModel
    from forerun.cli.conversation import Conversation
    from forerun.server.client import Remote

    source = ChatInput()
    model: ChatModel
    if url is not None:
        opt.refuse_given(*flags_of(opt.Form), "chat_template")
        named = next(iter(opt.given_models()), None)
        model = RemoteModel.of(Remote.of(url, api_key), named, params.body())
    elif api_key is not None:
        raise ConfigError("--api-key is for a server: give its --url")
    else:
        prompt = opt.conversation(first or "?", system)
        config = replace(config, prompt_cache=None) if no_prompt_cache else config
        llm = opt.load(config, prompt, opt.read_template(chat_template))
        hint = "; Enter goes on" if source.is_terminal else ""
        model = LocalModel(llm, replace(params(llm), structured_outputs=form), hint)
    conversation = Conversation(model)
    conversation.start(system)
    if source.is_terminal:
        console.note(f"{model.title()}\n/help lists commands, Ctrl-D ends", dim=True)
        for hint in model.hints() if isinstance(model, LocalModel) else ():
            console.note(hint, dim=True)
    keeps = source.is_terminal and not no_history
    if first is not None:
        console.note(conversation.send(first), dim=True)
    with history(history_file()) if keeps else nullcontext(), suppress(EOFError):
        while True:
            _turn(source, conversation)
    if conversation.num_answers:
        console.note(conversation.summary(), dim=True)


def _turn(source: ChatInput, conversation: Conversation) -> None:
    """Read a message or command and do what it asks for; in a pipe the first error ends the chat. Raises EOFError."""
    from forerun.cli import console

    try:
        text = source.read()
        if text or (conversation.rest and source.is_terminal):
            console.note(conversation.run(text), dim=True)
            if conversation.is_interrupted and not source.is_terminal:
                raise KeyboardInterrupt
    except ForerunError as error:
        if not source.is_terminal:
            raise
        console.note(f"error: {error}", fg="red")
    except KeyboardInterrupt:  # at the prompt, or before the answer began
        if not source.is_terminal:
            raise
        console.note("\nCtrl-C stops an answer; Ctrl-D or /exit ends the chat", dim=True)
