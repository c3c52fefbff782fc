"""The model of a command: looked at first, then loaded, with a line on stderr."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import click

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, LoadError

if TYPE_CHECKING:
    from forerun.compat.keywords import Keywords
    from forerun.llm import LLM
    from forerun.text.prompt import Prompt
    from forerun.text.tokenizer import Tokenizer


def load(
    config: EngineConfig,
    prompt: Prompt | None = None,
    template: str | None = None,
    **overrides: Unpack[Keywords],
) -> LLM:
    """Load the model a command was given, with a line on stderr while it takes its time.

    With a `template` in place of the model's. Raises RequestError if the model cannot take the `prompt`.
    """
    offer(config.model)  # before the engine is imported
    from forerun.cli.console import note, working
    from forerun.llm import LLM
    from forerun.system.device import num_cores, stay_on_one_socket
    from forerun.text.prompt import encode

    if config.threads is None and (text := stay_on_one_socket()):
        note(text)
    config = replace(config, threads=config.threads or num_cores())

    def check(tokenizer: Tokenizer) -> None:
        if template is not None:
            tokenizer.use_chat_template(template)
        if prompt is not None:
            encode(prompt, tokenizer)

    with working(f"loading {config.model}") as say:

        def progress(done: int, total: int) -> None:
            say(f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

        llm = LLM.checked(check, config, progress, **overrides)
    return llm


def offer(name: str) -> None:
    """Fetch the model of a short name that is not here, after a yes in a terminal. Raises LoadError.

    A script is told how to fetch it: it may not know what a file of some gigabytes costs.
    """
    from forerun.hub import names, shortnames

    names.check_name(name)
    short = shortnames.find(name)
    if short is None or names.here(name) is not None:
        return
    how = names.to_be_pulled(name, short)
    if not (sys.stdin.isatty() and click.confirm(f"{name} is {short}: fetch it?", err=True)):
        raise LoadError(how)
    from forerun.cli.console import working

    with working(f"fetching {short.model}"):
        names.pull(name)


def for_this_rank(config: EngineConfig) -> EngineConfig:
    """Return the configuration of the process that runs the command; others serve it here, and exit when it ends.

    Raises ConfigError if there are not as many processes as are asked for, or torch is not installed, which joins them.
    """
    from forerun.parallel.launch import Launch
    from forerun.system.device import num_cores, torch_problem

    if config.tensor_parallel_size > 1 and (problem := torch_problem()):
        raise ConfigError(problem)
    launch = Launch.of()
    if launch.rank > 0 and launch.size != config.tensor_parallel_size:
        raise click.exceptions.Exit(2)  # rank 0 says why
    launch.check(config)
    if launch.size == 1:
        return config
    config = replace(config, threads=config.threads or max(1, num_cores() // launch.local_size))
    if launch.rank == 0:
        return config
    from forerun.parallel.load import follow

    follow(config)
    raise click.exceptions.Exit(0)
