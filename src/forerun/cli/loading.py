"""The model of a command: looked at first, then loaded, with a line on stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from forerun.core.config import EngineConfig

if TYPE_CHECKING:
    from forerun.llm import LLM
    from forerun.spellings.keywords import Keywords
    from forerun.text.prompt import Prompt
    from forerun.text.tokenizer import Tokenizer


def load(
    config: EngineConfig,
    look: Callable[[Tokenizer], object] | None = None,
    template: str | None = None,
    **overrides: Unpack[Keywords],
) -> LLM:
    """Load the model a command was given, with a line on stderr while it takes its time.

    The tokenizer, with the `template` that is given, is first shown to `look`, which may raise.
    """
    from forerun.hub.names import check_name

    check_name(config.model)  # before the engine is imported
    from forerun.cli.console import note, working
    from forerun.core.device import num_cores, stay_on_one_socket
    from forerun.llm import LLM
    from forerun.model.kernels import native

    program = "command" if config.program == "python" else config.program
    if config.threads is None and (text := stay_on_one_socket()):
        note(text)
    config = replace(config, threads=config.threads or num_cores(), program=program)

    def opened(tokenizer: Tokenizer) -> None:
        if template is not None:
            tokenizer.use_chat_template(template)
        if look is not None:
            look(tokenizer)

    with working(f"loading {config.model}"):
        llm = LLM.after(opened, config, **overrides)
    if config.backend == "auto" and llm.device == "cpu" and not native.available():
        note(native.summary(), fg="yellow")
    return llm


def takes(prompt: Prompt) -> Callable[[Tokenizer], object]:
    """Return a look for `load`: whether a tokenizer, and its chat template, take a prompt."""

    def look(tokenizer: Tokenizer) -> None:
        from forerun.text.prompt import encode

        encode(prompt, tokenizer)

    return look
