"""`forerun serve`: an HTTP server with OpenAI's API."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt
from forerun.core import sizes
from forerun.core.config import DEFAULT_MODEL, EngineConfig
from forerun.core.device import bare_nbytes, share_heaps
from forerun.core.errors import ConfigError
from forerun.core.textfile import read_text
from forerun.server.config import ServerConfig

if TYPE_CHECKING:
    from forerun.llm import LLM

SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "max_tokens"),
)
"""What requests that do not give it are sampled with."""
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@opt.engine()
@opt.answering(*SAMPLING, max_tokens=None)
@opt.serving()
def command(
    config: EngineConfig,
    settings: ServerConfig,
    params: opt.Params,
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model, instead of --model.")
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the key here: all users of a machine can see its command lines.",
            rich_help_panel="Listening",
        ),
    ] = None,
    no_shared_drafts: Annotated[
        bool,
        typer.Option(
            "--no-shared-drafts",
            help="Never draft from what other requests said; auto is suffix then.",
            rich_help_panel="Drafting",
        ),
    ] = False,
) -> None:
    """Serve a model over HTTP with OpenAI's API, at http://127.0.0.1:8000/v1.

    Requests that come at once share the passes over the weights. SIGTERM and Ctrl-C let running requests finish; a
    second one ends at once.
    """
    said = _whole(config.budget_nbytes)
    try:
        from forerun.formats.checkpoint import open_checkpoint
        from forerun.formats.hub import resolve
        from forerun.server.run import serve
        from forerun.server.sharing import without_sharing
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"forerun serve needs {error.name}: pip install 'forerun[serve]' brings it"
        ) from error

    if api_key_file is not None:
        if settings.api_key is not None:
            raise ConfigError("give the key with --api-key or --api-key-file, not both")
        settings = replace(settings, api_key=read_text(api_key_file).strip())
    if name is not None:
        if config.model not in (name, DEFAULT_MODEL):
            raise ConfigError(f"two models, {name} and {config.model}: give one")
        config = replace(config, model=name)
    if no_shared_drafts:
        config = without_sharing(config)
    if settings.log_requests is None:
        settings = replace(settings, log_requests=sys.stderr.isatty())
    _log_to_stderr(bool(settings.log_requests))
    config = replace(config, program="server")
    template = _template(settings.chat_template)

    def load() -> LLM:
        llm = opt.load(config)
        if template is not None:
            llm.tokenizer.use_chat_template(template)
        return llm

    share_heaps()
    os.write(2, said.encode())
    serve(
        load,
        config.model,
        settings,
        _say,
        params.body(),
        check=lambda: open_checkpoint(resolve(config.model)),
    )


def _template(given: str | None) -> str | None:
    """The text of a chat template. Raises ConfigError for what is neither a file nor Jinja."""
    if given is None or given == "chatml":
        return given and CHATML
    if "{" in given or " " in given:
        return given
    return read_text(Path(given))


def _whole(budget: int | None) -> str:
    """What the process will take within a budget, if there is one; measured before anything of the server is loaded."""
    if budget is None:
        return ""
    bare = bare_nbytes()
    from forerun.engine.memory import COMMAND_NBYTES

    bare -= COMMAND_NBYTES
    each = (sizes.mebibytes(nbytes) for nbytes in (budget, bare, budget + bare))
    return "memory: {} for model and server, {} for Python and torch: at most {}\n".format(*each)


def _log_to_stderr(with_requests: bool) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    if with_requests:
        logging.getLogger("forerun.requests").setLevel(logging.INFO)


def _say(line: str) -> None:
    os.write(2, f"{line}\n".encode())  # also inside of a signal's handler
