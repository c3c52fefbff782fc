"""Options that several commands share: those of the engine, of sampling and of a server stand in their dataclasses.

A field that is declared with `core.options.option` is an option of every command decorated with `engine`, `sampling`,
`answering` or `serving`, by all its names. With those of `engine` come the flags that have no effect here
(`forerun.compat.engine`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from forerun.cli.command import MODEL, Command
from forerun.cli.help import Argument, FieldOption, Option
from forerun.cli.loading import for_this_rank as for_this_rank
from forerun.cli.loading import load as load
from forerun.cli.params import Form as Form
from forerun.cli.params import Params as Params
from forerun.cli.params import read_template as read_template
from forerun.compat import engine as compat
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError, given_as
from forerun.core.errors import check_least as check_least
from forerun.core.options import flag_of, flags_of
from forerun.core.params import SamplingParams
from forerun.text.generation import SETTINGS

DRAFTER = ("drafter", *DRAFT_FIELDS, "min_draft")
PASSES = (
    *(*DRAFTER, "draft_budget", "controller"),
    *("max_model_len", "max_num_seqs", "memory_budget", "prefill_chunk"),
)
"""Fields without a meaning where passes of the model run without an engine."""
PARALLEL = ("tensor_parallel_size",)
"""Fields that only commands have which can run as one of several processes (`for_this_rank`)."""

_FLAGS = {flag: name for name, flags in flags_of(EngineConfig).items() for flag in flags}
_GIVEN = "forerun.given"
"""Key of the engine's options that were given, by flag, in a context; models by MODEL."""

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
no_prompt_cache = click.option(
    "--no-prompt-cache", is_flag=True, help="Do not save the prompt cache to disk."
)
system = click.option("--system", "-sys", "--system-prompt", help="A system message.")


def engine(
    *, without: Collection[str] = (), is_parallel: bool = False, **defaults: Any
) -> Decorator:
    """Give a command the options of EngineConfig, which it gets as `config`; those of PARALLEL if it `is_parallel`.

    `defaults` take the place of the fields' own; those in `without` cannot be changed by the user. A word is the
    model, too, unless the command has an argument for it, or for a prompt.
    """
    hidden = {*without} if is_parallel else {*without, *PARALLEL}
    names = [name for name in flags_of(EngineConfig) if name not in hidden]
    fixed = {name: value for name, value in defaults.items() if name in without}
    group = "Model and machine"
    options = _options(EngineConfig, names[:1], group, defaults, multiple=True)  # the models
    options += _options(EngineConfig, names[1:], group, defaults)
    if "drafter" in names:
        about = "vLLM's JSON object, instead of -d."
        flag = flag_of(compat.SPECULATIVE)
        options.append(Option([_name(flag), flag], group="Drafting", metavar="JSON", help=about))
        options += [_hidden(flag_of(name)) for name in compat.DRAFTING]
    options += _options(EngineConfig, fixed, "", {}, hidden=True)
    options += [_hidden(flag, one.takes) for flag, one in compat.IGNORED.items()]

    def build(given: dict[str, Any], typed: dict[str, str], is_one: bool) -> EngineConfig:
        click.get_current_context().meta[_GIVEN] = given.copy()
        models = given_models()
        if is_one and len({*models}) > 1:
            raise ConfigError(
                f"two models, {models[0]} and {models[1]}: give one (forerun serve takes several)"
            )
        given = {flag: value for flag, value in given.items() if not _is_model(flag)}
        if models:
            given["-m"] = models[0]
        for flag in [flag for flag in given if _FLAGS.get(flag) in fixed]:
            always, value = fixed[_FLAGS[flag]], given.pop(flag)
            if str(value) != str(always):
                compat.note(flag, value, f"it is always {always} with this command")
        config, ours = compat.configure(EngineConfig(**defaults), given)
        typed.update(ours)
        return config

    def decorate(function: Function) -> Function:
        params = getattr(function, "__click_params__", [])
        taken = {each.name for each in params if isinstance(each, click.Argument)}
        has_words = not taken & {"prompt", "models", "model"}
        help = "The model, instead of --model."
        words = Argument([MODEL], nargs=-1, metavar="[MODEL]", help=help)
        each = partial(build, is_one="models" not in taken)
        return _given("config", [*[words] * has_words, *options], each)(function)

    return decorate


def _is_model(flag: str) -> bool:
    return flag == MODEL or _FLAGS.get(flag) == "model"


@cache
def _hidden(flag: str, takes: str | None = "") -> click.Option:
    """Make an option that help does not list, one for all commands; `takes` as in `compat.engine.IgnoredFlag`."""
    settings: dict[str, Any] = {"is_flag": True} if takes is None else {}
    if takes == "?":
        settings = {"is_flag": False, "flag_value": ""}
    return click.Option([_name(flag), flag], hidden=True, default=None, **settings)


def sampling(*names: str, **defaults: Any) -> Decorator:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`; greedy by default."""
    defaults = {"temperature": 0.0} | defaults

    def build(given: dict[str, Any]) -> SamplingParams:
        return SamplingParams(**(defaults | given))

    return _fields("params", SamplingParams, names, "Sampling", defaults, build)


def answering(*names: str, **defaults: Any) -> Decorator:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`.

    It gives a model's, changed by them. What is not given and has no default in `defaults` is the model's own.
    """

    def build(given: dict[str, Any]) -> Params:
        chosen = defaults | given
        params = SamplingParams(**chosen)  # what is wrong is said before the model is loaded
        return Params({name: getattr(params, name) for name in chosen})

    shown = dict.fromkeys(SETTINGS, "the model's own") | defaults
    return _fields("params", SamplingParams, names, "Sampling", shown, build)


def serving() -> Decorator:
    """Give a command the options of ServerConfig, which it gets as `settings`."""
    from forerun.server.config import ServerConfig

    return _fields(
        "settings", ServerConfig, (), "Listening", {}, lambda given: ServerConfig(**given)
    )


def form(*names: str) -> Decorator:
    """Give a command options of an answer's form, all or those named, which it gets as `form`, None without one."""
    return _fields("form", Form, names, "Options", {}, lambda given: Form(**given).read())


def _fields(
    name: str,
    cls: Any,
    names: Iterable[str],
    group: str,
    shown: Mapping[str, object],
    build: Callable[[dict[str, Any]], object],
) -> Decorator:
    """Give a command the options of a dataclass, all or those named, and by `name` what is built of those given."""
    options = _options(cls, names or flags_of(cls), group, shown)
    return _given(name, options, lambda given, typed: build(_read(options, given, typed)))


def _options(
    cls: Any,
    names: Iterable[str],
    group: str,
    defaults: Mapping[str, object],
    **settings: Any,
) -> list[click.Option]:
    """Make an option of each name of the fields; `defaults` are what help says."""
    of_fields = {field.name: field.default for field in fields(cls)}
    return [
        FieldOption(flag, cls, name, group, _shown(defaults.get(name, of_fields[name])), **settings)
        for name in names
        for flag in flags_of(cls)[name]
    ]


def _shown(default: object) -> str:
    """Write a default for help; nothing for none."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default in (None, ()) else str(default)


def _name(flag: str) -> str:
    """Name a flag's parameter, so that it is not that of another flag or parameter of a command."""
    return flag.replace("-", "_")


def _read(
    options: Sequence[click.Option], given: Mapping[str, Any], typed: dict[str, str]
) -> dict[str, Any]:
    """Convert the values of a dataclass's fields; the strings of several names of a list come after one another.

    A stop string may spell line ends and tabs with a backslash. Raises ConfigError.
    """
    by_flag = {each.flag: each for each in options if isinstance(each, FieldOption)}
    chosen: dict[str, Any] = {}
    for flag, value in given.items():
        option = by_flag[flag]
        typed[option.field] = flag
        with given_as(typed):
            read = option.read(value)
        if option.field == "stop":
            read = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in read)
        before = chosen.get(option.field, ()) if option.is_list else None
        chosen[option.field] = read if before is None else (*before, *read)
    return chosen


def _given(
    name: str,
    params: Sequence[click.Parameter],
    build: Callable[[dict[str, Any], dict[str, str]], object],
) -> Decorator:
    """Make a decorator that adds parameters, and gives a command what is built of those given, by `name`.

    `build` gets values by flag in the order of the command line, and a mapping to note what options were called.
    """

    def decorate(function: Function) -> Function:
        known = [*getattr(function, "__click_params__", [])]
        flags = {flag for each in known for flag in (*each.opts, *each.secondary_opts)}
        mine = [each for each in params if not flags & {*each.opts, *each.secondary_opts}]
        by_name = {each.name: each.opts[0] for each in mine}

        @functools.wraps(function)
        def run(**values: Any) -> Any:
            given = {by_name[key]: values.pop(key) for key in [*values] if key in by_name}
            typed: dict[str, str] = {}
            with given_as(typed):
                built = build({k: v for k, v in given.items() if v not in (None, ())}, typed)
                return function(**values, **{name: built})

        return with_options(run, [partial(_add, each) for each in mine])

    return decorate


def _add(param: click.Parameter, function: Function) -> Function:
    if not hasattr(function, "__click_params__"):
        function.__click_params__ = []  # type: ignore[attr-defined]
    function.__click_params__.append(param)  # type: ignore[attr-defined]
    return function


def with_options(function: Function, options: Sequence[Decorator]) -> Function:
    """Give a command options, in this order in help."""
    for option in reversed(options):
        function = option(function)
    return function


def given_models() -> list[str]:
    """List the models that the user named by options, then those by words."""
    given = click.get_current_context().meta.get(_GIVEN, {})
    return [name for flag in given if _is_model(flag) for name in given[flag]]


def given_flags() -> list[str]:
    """List the engine's options that the user gave, but for models, as on a command line."""
    words: list[str] = []
    for flag, value in click.get_current_context().meta.get(_GIVEN, {}).items():
        if not _is_model(flag):
            words += [flag] if value is True else [flag, str(value)]
    return words


def refuse_given(*names: str) -> None:
    """Raise ConfigError if an option of the engine but the model, or one of `names`, was given with --url."""
    context = click.get_current_context()
    given = [flag for flag in context.meta.get(_GIVEN, {}) if not _is_model(flag)]
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if getattr(option, "field", option.name) in names and source is ParameterSource.COMMANDLINE:
            given.append(max(option.opts, key=len))
    if given:
        raise ConfigError(f"{given[0]} is for a model of this machine: leave it out with --url")


def names(given: str | None) -> list[str]:
    """Split a list with commas."""
    return [part for part in map(str.strip, (given or "").split(",")) if part]


def conversation(text: str, system: str | None = None) -> list[dict[str, str]]:
    """Make a user message, after a system message if there is one."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]
