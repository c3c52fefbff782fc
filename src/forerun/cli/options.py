"""Options that several commands share: those of the engine, of sampling and of a server stand in their dataclasses.

A field that is declared with `core.options.option` is an option of every command decorated with `engine`, `sampling`,
`answering` or `serving`. What other engines call it, or what has no effect here, stands in `forerun.spellings`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.arguments import Arguments, of_context
from forerun.cli.command import Command
from forerun.cli.help import Argument, FieldOption, Option
from forerun.cli.loading import load as load
from forerun.cli.params import FORM as FORM
from forerun.cli.params import Params as Params
from forerun.cli.params import read_form
from forerun.cli.params import read_template as read_template
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError, given_as
from forerun.core.errors import check_least as check_least
from forerun.core.params import SamplingParams
from forerun.spellings import engine as spellings
from forerun.text.generation import SETTINGS

if TYPE_CHECKING:
    from forerun.core.structured import StructuredOutputsParams
    from forerun.server.config import ServerConfig

DRAFTER = ("drafter", *DRAFT_FIELDS, "min_draft")
PASSES = (
    *(*DRAFTER, "draft_budget", "controller"),
    *("max_model_len", "max_num_seqs", "memory_budget", "prefill_chunk"),
)
"""Fields without a meaning where passes of the model run without an engine."""
PARALLEL = ("tensor_parallel_size",)
"""Fields that only commands have which can run as one of several processes (`for_this_rank`)."""

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]
PATH: Any = click.Path(path_type=Path)
command = partial(click.command, cls=Command)
argument = partial(click.argument, cls=Argument)
as_json = click.option(
    *("--json", "as_json"),
    is_flag=True,
    help="Print one JSON document on stdout, and nothing else there.",
)
template = click.option(
    *("--chat-template", "--chat-template-file"),
    metavar="FILE",
    help="A chat template in place of the model's own: a file of Jinja, its text, or chatml.",
)
system = click.option("--system", "-sys", "--system-prompt", help="A system message.")


def engine(
    *, without: Collection[str] = (), is_parallel: bool = False, **defaults: object
) -> Decorator:
    """Give a command the options of EngineConfig, which it gets as `config`; those of PARALLEL if it `is_parallel`.

    `defaults` take the place of the fields' own; those in `without` cannot be changed by the user.
    """
    hidden = {*without} if is_parallel else {*without, *PARALLEL}
    names = [name for name in _declared(EngineConfig) if name not in hidden]
    fixed = {name: value for name, value in defaults.items() if name in without}

    def build(values: dict[str, Any], arguments: Arguments) -> EngineConfig:
        foreign = {**arguments.foreign}
        for name in [name for name in foreign if _field(name) in fixed]:
            always, value = fixed[_field(name)], foreign.pop(name)
            if value != always:
                spellings.note(name, value, f"it is always {always} with this command")
        given = {name: values.pop(name) for name in arguments.typed if name in values}
        values.pop(spellings.SPECULATIVE, None)
        config, typed = spellings.configure(EngineConfig(**values), given | foreign)
        arguments.typed.update({ours: name for ours, name in typed.items() if name not in given})
        return config

    options = _options(EngineConfig, names, "Model and machine", defaults)
    foreign_names = {
        name for name in spellings.ENGINE_NAMES if _field(name) in {*names, *fixed, ""}
    }
    foreign_names |= {*names, *fixed}
    if "drafter" in names:
        flag, text = "--speculative-config", "vLLM's JSON object, instead of -d."
        options.append(click.option(flag, cls=Option, group="Drafting", metavar="JSON", help=text))
        foreign_names |= {spellings.SPECULATIVE, *spellings.DRAFTING_NAMES}
    return _given(
        "config", options, [*names, spellings.SPECULATIVE], build, defaults, foreign_names
    )


def _field(name: str) -> str:
    """Find the field that a name of any engine is; empty for one without."""
    key = spellings.plain(name)
    one = spellings.ENGINE_NAMES.get(key)
    return one.becomes if one is not None else key if key in spellings.FIELDS else ""


def sampling(*names: str, **defaults: object) -> Decorator:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`; greedy by default."""
    names = names or _declared(SamplingParams)
    defaults = {"temperature": 0.0} | defaults
    options = _options(SamplingParams, names, "Sampling", defaults)
    return _given("params", options, names, _read, defaults)


def answering(*names: str, **defaults: object) -> Decorator:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`.

    It gives a model's, changed by them. What is not given and has no default in `defaults` is the model's own.
    """
    names = names or _declared(SamplingParams)
    models = [name for name in SETTINGS if name not in defaults]

    def build(values: dict[str, Any], arguments: Arguments) -> Params:
        given = {
            name: value for name, value in values.items() if name not in models or value is not None
        }
        params = _read(given, arguments)  # what is wrong is said before the model is loaded
        return Params({name: getattr(params, name) for name in given})

    defaults = dict.fromkeys(models) | defaults
    options = _options(SamplingParams, names, "Sampling", defaults)
    return _given("params", options, names, build, defaults)


def serving() -> Decorator:
    """Give a command the options of ServerConfig, which it gets as `settings`."""
    from forerun.server.config import ServerConfig

    def build(values: dict[str, Any], arguments: Arguments) -> ServerConfig:
        return ServerConfig(**values)

    names = _declared(ServerConfig)
    return _given("settings", _options(ServerConfig, names, "Listening", {}), names, build)


def form(*names: str) -> Decorator:
    """Give a command options of an answer's form, all or those named, which it gets as `form`, None without one."""
    each = {
        "json_schema": click.option(
            *("-j", "--json-schema", "-jf", "--json-schema-file"),
            metavar="FILE",
            help="Answer in JSON of this schema: a file, or the schema itself.",
        ),
        "grammar": click.option(
            *("--grammar",), metavar="GBNF", help="Answer as this grammar says: GBNF, EBNF or Lark."
        ),
        "grammar_file": click.option(
            *("--grammar-file",), type=PATH, metavar="FILE", help="Read such a grammar here."
        ),
    }
    names = names or FORM

    def build(values: dict[str, Any], _: Arguments) -> StructuredOutputsParams | None:
        return read_form(**values)

    return _given("form", [each[name] for name in names], names, build)


def _declared(cls: type[Any]) -> tuple[str, ...]:
    """List the fields that are options."""
    return tuple(field.name for field in fields(cls) if "flags" in field.metadata)


def _options(
    cls: type[Any], names: Iterable[str], group: str, defaults: Mapping[str, object]
) -> list[Decorator]:
    """Make an option of each field. One whose default is None where the field's is not is the model's own."""
    of_fields = {field.name: field.default for field in fields(cls)}
    options: list[Decorator] = []
    for name in names:
        default = defaults.get(name, of_fields[name])
        is_models = default is None and of_fields[name] is not None
        options.append(
            click.option(
                cls=FieldOption,
                owner=cls,
                field=name,
                group=group,
                default=default,
                show_default="the model's own" if is_models else None,
            )
        )
    return options


def _read(values: dict[str, Any], _: Arguments) -> SamplingParams:
    """Make the parameters; a stop string may spell line ends and tabs with a backslash."""
    stops = values.get("stop") or ()
    values["stop"] = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stops)
    return SamplingParams(**values)


def _given(
    name: str,
    options: Sequence[Decorator],
    names: Collection[str],
    build: Callable[[dict[str, Any], Arguments], object],
    defaults: Mapping[str, object] | None = None,
    foreign_names: Collection[str] = (),
) -> Decorator:
    """Make a decorator that adds options, and gives a command what is built of their values by `name`.

    `foreign_names` are other engines' names that the command takes besides (`cli.arguments`).
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            arguments = of_context()
            given = {each: values.pop(each) for each in names if each in values}
            with given_as(arguments.typed):
                return function(**values, **{name: build({**(defaults or {}), **given}, arguments)})

        run.foreign_names = {*foreign_names, *getattr(function, "foreign_names", ())}  # type: ignore[attr-defined]
        return with_options(run, options)

    return decorate


def with_options(function: Function, options: Sequence[Decorator]) -> Function:
    """Give a command options, in this order in help."""
    for option in reversed(options):
        function = option(function)
    return function


def refuse_given(*names: str) -> None:
    """Raise ConfigError if an option of the engine but the model, or one of `names`, was given with --url."""
    arguments = of_context()
    refused = {*_declared(EngineConfig), spellings.SPECULATIVE, *names} - {"model"}
    given = [flag for name, flag in arguments.typed.items() if name in refused]
    if given := [*given, *arguments.foreign]:
        raise ConfigError(f"{given[0]} is for a model of this machine: leave it out with --url")


def typed_model(config: EngineConfig) -> str | None:
    """Return the model if the user gave one."""
    return config.model if "model" in of_context().typed else None


def for_this_rank(config: EngineConfig) -> EngineConfig:
    """Return the configuration of the process that runs the command; others serve it here, and exit when it ends.

    Raises ConfigError if there are not as many processes as are asked for, or torch is not installed, which joins them.
    """
    from forerun.core.device import num_cores, torch_problem
    from forerun.parallel.launch import Launch

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


def names(given: str | None) -> list[str]:
    """Split a list with commas."""
    return [part for part in map(str.strip, (given or "").split(",")) if part]


def conversation(text: str, system: str | None = None) -> list[dict[str, str]]:
    """Make a user message, after a system message if there is one."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]
