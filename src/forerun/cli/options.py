"""Options that several commands share: those of the engine and of sampling come from their dataclasses.

A field of `EngineConfig` or `SamplingParams` is an option of every command decorated with `engine` or
`sampling`; its docstring is the help. Further names of a flag stand in `FLAGS`; what other engines call options
that are no flag here, or have no effect, in `forerun.spellings`.
"""

from __future__ import annotations

import copy
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forerun.cli.arguments import META, Arguments
from forerun.cli.help import type_name
from forerun.cli.params import FORM as FORM
from forerun.cli.params import Grammar as Grammar
from forerun.cli.params import GrammarFile as GrammarFile
from forerun.cli.params import JsonSchema as JsonSchema
from forerun.cli.params import Params as Params
from forerun.cli.params import form as form
from forerun.core import options
from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError, given_as
from forerun.core.errors import check_least as check_least
from forerun.core.params import SamplingParams
from forerun.server.config import ServerConfig
from forerun.spellings import engine as spellings
from forerun.text.generation import SETTINGS

if TYPE_CHECKING:
    from forerun.llm import LLM

FLAGS: Mapping[str, tuple[str, ...]] = {
    "model": ("-m", "--model", "-hf", "--hf-repo"),
    "drafter": ("-d", "--drafter", "--spec-type"),
    "draft_model": ("-md", "--draft-model", "--model-draft"),
    "num_draft": ("--num-draft", "--draft-max", "--draft", "--spec-draft-n-max"),
    "min_draft": ("--min-draft", "--draft-min", "--spec-draft-n-min"),
    "threads": ("-t", "--threads"),
    "max_model_len": ("-c", "--max-model-len", "--ctx-size"),
    "max_tokens": ("-n", "--max-tokens", "--n-predict", "--predict"),
    "temperature": ("--temperature", "--temp"),
    "repetition_penalty": ("--repetition-penalty", "--repeat-penalty"),
    "seed": ("-s", "--seed"),
    "stop": ("--stop", "-r", "--reverse-prompt"),
    "ignore_eos": ("--ignore-eos",),
    "served_model_name": ("-a", "--served-model-name", "--alias"),
    "chat_template": ("--chat-template", "--chat-template-file"),
    "embeddings": ("--embeddings", "--embedding"),
    "page": ("--page/--no-page", "--ui/--no-ui", "--webui/--no-webui"),
    "log_requests": ("--log-requests/--no-log-requests",),
}
"""Flags of fields that have more names than their own."""

DRAFTER = ("drafter", *DRAFT_FIELDS, "min_draft")
PASSES = (
    *(*DRAFTER, "draft_budget", "controller", "learn"),
    *("max_model_len", "max_num_seqs", "memory_budget", "prefill_chunk"),
)
"""Fields without a meaning where passes of the model run without an engine."""
NOT_SPELLED = (
    *("n", "logit_bias", "logprobs", "prompt_logprobs", "detokenize"),
    *("skip_special_tokens", "include_stop_str_in_output", "structured_outputs"),
    *("prediction", "max_draft", "pooling"),
)
"""Fields of a request that no command offers."""
NOT_OF_ENGINE = ("draft_options", "seed", "program")
"""Fields of the engine that have options elsewhere (flags of other engines, the request's seed) or none."""
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
"""Fields that only commands have which can run as one of several processes (`placed`)."""

METAVARS: Mapping[str, str] = {
    "model": "MODEL",
    "draft_model": "MODEL",
    "drafter": "DRAFTER",
    "device": "DEVICE",
    "backend": "auto|native|torch",
    "head_bits": "4|8",
    "draft_head_bits": "4|8",
    "memory_budget": "SIZE|cgroup",
    "served_model_name": "NAME",
    "chat_template": "FILE",
    "chat_template_kwargs": "JSON",
    "pooling": "last|mean|none",
    "allowed_origins": "ORIGIN",
    "allowed_hosts": "NAME",
    "api_key": "KEY",
    "body_timeout": "SECONDS",
    "idle_timeout": "SECONDS",
    "load_timeout": "SECONDS",
    "drain_timeout": "SECONDS",
    "stream_interval": "SECONDS",
    "sse_ping_interval": "SECONDS",
}
"""What help says a field takes, where its type alone does not."""

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, and nothing else there."),
]
Raw = Annotated[
    bool,
    typer.Option(
        *("--raw", "-no-cnv", "--no-conversation"),
        help="Complete the text as it is, without the chat template.",
    ),
]
System = Annotated[
    str | None, typer.Option("--system", "-sys", "--system-prompt", help="A system message.")
]
Command = Callable[..., None]


def engine(
    *, without: Collection[str] = (), is_parallel: bool = False, **defaults: object
) -> Callable[[Command], Command]:
    """Give a command the options of EngineConfig, which it gets as `config`; those of PARALLEL if it `is_parallel`.

    `defaults` take the place of the fields' own; those in `without` cannot be changed by the user.
    """
    hidden = {*without, *NOT_OF_ENGINE} | (set() if is_parallel else {*PARALLEL})
    names = [field.name for field in fields(EngineConfig) if field.name not in hidden]
    what = "vLLM's JSON object, instead of -d."
    spec = _keyword(spellings.SPECULATIVE, None, str | None, what, EngineConfig)
    fixed = {name: value for name, value in defaults.items() if name in without}

    def build(values: dict[str, Any], arguments: Arguments) -> EngineConfig:
        foreign = {**arguments.foreign}
        for name in [name for name in foreign if _field(name) in fixed]:
            value = fixed[_field(name)]
            why = f"it is always {value} with this command"
            spellings.note(name, foreign.pop(name), why)
        given = {name: values.pop(name) for name in arguments.typed if name in values}
        values.pop(spellings.SPECULATIVE, None)
        config, typed = spellings.configure(EngineConfig(**values), given | foreign)
        arguments.typed.update({ours: name for ours, name in typed.items() if name not in given})
        return config

    extra = [spec] if "drafter" in names else []
    reads = {name for name in spellings.ENGINE_NAMES if _field(name) in {*names, *fixed, ""}}
    reads |= {*names, *fixed}
    if "drafter" in names:
        reads |= {spellings.SPECULATIVE, *spellings.DRAFTING_NAMES}
    return _derive("config", EngineConfig, names, defaults, build, extra, reads)


def _field(name: str) -> str:
    """Find the field that a name of any engine is; empty for one without."""
    key = spellings.plain(name)
    one = spellings.ENGINE_NAMES.get(key)
    return one.becomes if one is not None else key if key in spellings.FIELDS else ""


def sampling(*names: str, **defaults: object) -> Callable[[Command], Command]:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`; greedy by default."""
    every = [field.name for field in fields(SamplingParams) if field.name not in NOT_SPELLED]
    return _derive("params", SamplingParams, names or every, {"temperature": 0.0} | defaults, _read)


def answering(*names: str, **defaults: object) -> Callable[[Command], Command]:
    """Give a command options of SamplingParams, all or those named, which it gets as `params`.

    It gives a model's, changed by them. What is not given and has no default in `defaults` is the model's own.
    """
    every = [field.name for field in fields(SamplingParams) if field.name not in NOT_SPELLED]
    every = [name for name in every if name in (names or every)]
    own = [n for n in SETTINGS if n not in defaults]

    def build(values: dict[str, Any], arguments: Arguments) -> Params:
        given = {
            name: value for name, value in values.items() if name not in own or value is not None
        }
        params = _read(given, arguments)  # what is wrong is said before the model is loaded
        return Params({name: getattr(params, name) for name in given})

    return _derive("params", SamplingParams, every, dict.fromkeys(own) | defaults, build)


def serving() -> Callable[[Command], Command]:
    """Give a command the options of ServerConfig, which it gets as `settings`."""

    def build(values: dict[str, Any], arguments: Arguments) -> ServerConfig:
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return ServerConfig(**{**values, **lists})

    names = [field.name for field in fields(ServerConfig)]
    return _derive("settings", ServerConfig, names, {}, build)


def _read(values: dict[str, Any], arguments: Arguments) -> SamplingParams:
    """Make the parameters; a stop string may spell line ends and tabs with a backslash."""
    stops = values.get("stop") or ()
    values["stop"] = tuple(text.replace("\\n", "\n").replace("\\t", "\t") for text in stops)
    return SamplingParams(**values)


def _derive(
    name: str,
    cls: type[Any],
    shown: Collection[str],
    defaults: Mapping[str, object],
    build: Callable[[dict[str, Any], Arguments], object],
    extra: Collection[inspect.Parameter] = (),
    reads: Collection[str] = (),
) -> Callable[[Command], Command]:
    """Make a decorator that replaces a command's parameter `name` by an option for each field.

    `reads` are other engines' names that it takes besides (`_arguments`).
    """
    known = _parameters(cls)  # type: ignore[arg-type]  # a class can be hashed
    added = [_with_default(known[n], defaults.get(n, known[n].default)) for n in shown]
    added += extra

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for own in signature.parameters.values():
            parameters += added if own.name == name else [own.replace(kind=own.KEYWORD_ONLY)]

        context = next((own for own in parameters if own.annotation is typer.Context), _CONTEXT)
        has_own = context in parameters
        parameters += [] if has_own else [context]

        def run(**values: Any) -> None:
            read = values[context.name] if has_own else values.pop(context.name)
            arguments = read.meta.get(META) or Arguments()
            given = {own.name: values.pop(own.name, own.default) for own in added}
            with given_as(arguments.typed):
                command(**values, **{name: build({**defaults, **given}, arguments)})

        run.reads = {*reads, *getattr(command, "reads", ())}  # type: ignore[attr-defined]
        run.__doc__, run.__module__ = command.__doc__, command.__module__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {own.name: own.annotation for own in parameters}
        return run

    return decorate


_CONTEXT = inspect.Parameter(
    "typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
)


def _with_default(parameter: inspect.Parameter, default: object) -> inspect.Parameter:
    """Give an option another default; None stands for the model's own."""
    if default is None and parameter.default is not None:
        kind, option = typing.get_args(parameter.annotation)
        option = copy.copy(option)
        option.show_default = "the model's own"
        parameter = parameter.replace(annotation=Annotated[kind | None, option])
    return parameter.replace(default=default)


@cache
def _parameters(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """Make an option of each field."""
    hints = typing.get_type_hints(cls)
    helps = {option.name: " ".join(option.help.split()) for option in options.describe(cls)}
    return {
        field.name: _keyword(field.name, field.default, hints[field.name], helps[field.name], cls)
        for field in fields(cls)
    }


def _keyword(
    name: str, default: object, hint: object, text: str, cls: type[object]
) -> inspect.Parameter:
    word = name.replace("_", "-")
    own = f"--{word}/--no-{word}" if hint is bool else f"--{word}"
    takes = METAVARS.get(name) or type_name(hint)
    option = typer.Option(
        *FLAGS.get(name, (own,)), help=text, metavar=takes, rich_help_panel=_group(name, cls)
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[_type(hint), option])


def _group(name: str, cls: type[object]) -> str:
    """Choose the heading of a field's option in help."""
    if cls is SamplingParams:
        return "Sampling"
    if cls is ServerConfig:
        is_bound = name.startswith("max_") or name in ("body_timeout", "load_timeout", "models_max")
        return "Bounds" if is_bound else "Listening"
    if name in PARALLEL:
        return "More machines"
    is_drafting = "draft" in name or name in ("controller", "speculative_config")
    return "Drafting" if is_drafting else "Model and machine"


def _type(hint: Any) -> Any:
    """Choose the type that typer reads for a field: text for names and mappings, a list for a tuple."""
    is_union = isinstance(hint, types.UnionType)
    first, *others = typing.get_args(hint) if is_union else (hint,)
    if typing.get_origin(first) is Literal:
        first = str  # the config and the loader know what is allowed
    elif typing.get_origin(first) is tuple:
        first = list[typing.get_args(first)[0]]  # type: ignore[misc]
    return first | None if types.NoneType in others else first


def refuse_given(context: typer.Context, *names: str) -> None:
    """Raise ConfigError if an option of the engine but the model, or one of `names`, was given with --url."""
    arguments = context.meta.get(META) or Arguments()
    own = {field.name for field in fields(EngineConfig)} | {"speculative_config", *names}
    own -= {"model", "seed"}
    given = [flag for name, flag in arguments.typed.items() if name in own] + [*arguments.foreign]
    if given:
        raise ConfigError(f"{given[0]} is for a model of this machine: leave it out with --url")


def typed_model(context: typer.Context, config: EngineConfig) -> str | None:
    """Return the model if the user gave one."""
    arguments = context.meta.get(META) or Arguments()
    return config.model if "model" in arguments.typed else None


def typed_models(context: typer.Context) -> list[str]:
    """List every model that was named by an option, each once and in order."""
    arguments = context.meta.get(META) or Arguments()
    return [*dict.fromkeys(arguments.models)]


def placed(config: EngineConfig) -> EngineConfig:
    """Return the configuration of the process that runs the command; others serve it here, and exit when it ends.

    Raises ConfigError if there are not as many processes as are asked for, or torch is not installed, which joins them.
    """
    from forerun.core.device import num_cores, torch_problem
    from forerun.parallel.place import Place

    if config.num_ranks > 1 and (problem := torch_problem()):
        raise ConfigError(problem)
    place = Place.of()
    if place.rank > 0 and place.size != config.num_ranks:
        raise typer.Exit(2)  # rank 0 says why
    place.check(config)
    if place.size == 1:
        return config
    config = replace(config, threads=config.threads or max(1, num_cores() // place.local_size))
    if place.rank == 0:
        return config
    from forerun.parallel.load import follow

    follow(config)
    raise typer.Exit


def load(config: EngineConfig, **overrides: object) -> LLM:
    """Load the model a command was given, with a line on stderr while it takes its time."""
    from forerun.hub.names import check_name

    check_name(config.model)  # before the engine is imported
    from forerun.cli.console import stderr, working
    from forerun.core.device import num_cores
    from forerun.llm import LLM
    from forerun.model.kernels import native

    program = "command" if config.program == "python" else config.program
    config = replace(config, threads=config.threads or num_cores(), program=program)
    with working(f"loading {config.model}"):
        llm = LLM(config, **overrides)
    if config.backend == "auto" and llm.device == "cpu" and not native.available():
        stderr().print(native.summary(), style="yellow")
    return llm


def names(given: str | None) -> list[str]:
    """Split a list with commas."""
    return [part for part in map(str.strip, (given or "").split(",")) if part]


def conversation(text: str, system: str | None = None) -> list[dict[str, str]]:
    """Make a user message, after a system message if there is one."""
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": text}]
