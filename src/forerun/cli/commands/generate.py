"""`forerun generate`: complete one prompt, streaming."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.system.files import read_text

if TYPE_CHECKING:
    from forerun.core.structured import StructuredOutputsParams


@opt.command()
@opt.engine(is_parallel=True, without=("max_num_seqs",), max_num_seqs=1)
@opt.answering(max_tokens=256)
@opt.argument(
    "prompt",
    nargs=-1,
    metavar="[PROMPT]",
    help="The prompt. Text that is piped in follows it; - is stdin alone.",
)
@click.option("-p", "--prompt", "text", help="The prompt; the same option as in llama.cpp.")
@click.option("-f", "--file", type=opt.PATH, metavar="FILE", help="Read the prompt from a file.")
@opt.system
@opt.template
@click.option(
    "--raw",
    "-no-cnv",
    "--no-conversation",
    is_flag=True,
    help="Complete the text as it is, without the chat template.",
)
@opt.form()
@opt.as_json
def command(
    config: EngineConfig,
    params: opt.Params,
    prompt: tuple[str, ...],
    text: str | None,
    file: Path | None,
    system: str | None,
    chat_template: str | None,
    raw: bool,
    form: StructuredOutputsParams | None,
    as_json: bool,
) -> None:
    """Answer a prompt; tokens the drafter guessed are tinted. Ctrl-C ends it and keeps what is there.

    The prompt goes through the model's chat template, as with llm.chat; --raw completes the text as it is, as
    llm.generate does. echo "..." | forerun generate reads stdin, and cat FILE | forerun generate "Summarize:" puts
    the file behind the prompt.
    """
    from forerun.cli import console

    config = opt.for_this_rank(config)
    text = _read_prompt(_one(prompt, text), file)
    if raw and system is not None:
        raise ConfigError("--raw leaves out the chat template, --system needs it: give one of them")
    messages = text if raw else opt.conversation(text, system)
    llm = opt.load(config, messages, opt.read_template(chat_template))
    request = replace(params(llm), structured_outputs=form)
    completion, measured, is_complete = console.answer(llm, messages, request, shown=not as_json)
    console.note(measured.line(llm.drafter_spec.text()), dim=True)
    if as_json:
        outcome = {
            "text": completion.text,
            "token_ids": [*completion.token_ids],
            "finish_reason": completion.finish_reason,
        }
        console.print_json(outcome | measured.document(llm))
    if not is_complete:
        raise click.exceptions.Exit(130)


def _one(words: Sequence[str], text: str | None) -> str | None:
    """Return the prompt of a command line. Raises ConfigError for several, and for a model."""
    for word in words:
        if word.endswith(".gguf"):
            raise ConfigError(f"{word} is a model, not a prompt: give it as -m {word}")
    if len(words) > 1:
        raise ConfigError(f"unexpected {words[1]!r}: a text with spaces needs quotes around it")
    if words and text is not None:
        raise ConfigError("give the prompt once: as it is, or with -p")
    return words[0] if words else text


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    """Read the prompt: the argument, a file, or stdin, which follows an argument. One line end at its end is removed.

    Raises ConfigError if there is none, more than one, or an empty one.
    """
    if prompt is not None and file is not None:
        raise ConfigError("two prompts: give one as an argument or with --file, not both")
    if file is not None and str(file) != "-":
        text, origin = read_text(file), f"the prompt in {file}"
    elif file is not None or prompt == "-":
        text, origin = _read_stdin(), "the prompt on stdin"
    else:
        piped = _piped(wanted=prompt is None)
        if prompt is None and not piped:
            raise ConfigError("no prompt: give one as an argument, with --file FILE, or on stdin")
        text, origin = "\n\n".join(filter(None, (prompt, piped))), "the prompt"
    if not text.strip():
        raise ConfigError(f"{origin} is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # how Python keeps bytes of an argument that are no text
        raise ConfigError(f"{origin} is not UTF-8 text") from error
    return text.removesuffix("\n")


def _piped(*, wanted: bool) -> str | None:
    """Read what is piped in; None if nothing is. With a prompt at hand, only a pipe or a file counts.

    A pipe that stays open and empty blocks: after a second a message says so.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
        is_terminal = sys.stdin.isatty()
    except (AttributeError, OSError, ValueError):  # closed, or none at all
        return None
    if is_terminal or not (wanted or stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return None
    if not select.select([sys.stdin], [], [], 1.0)[0]:
        print("reading stdin until it ends; add < /dev/null if there is no input", file=sys.stderr)
    return _read_stdin()


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not UTF-8 text: {error}") from error
