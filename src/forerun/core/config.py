"""EngineConfig: the only place where an option of the engine is declared.

`LLM(...)`, the command line, autotune and bench are built from it; a field's docstring is its help text.
Other engines' names of the fields stand in `core/spellings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

from forerun.core import options, sizes, spellings
from forerun.core.container import container_budget
from forerun.core.errors import ConfigError, check_least, unknown

DEFAULT_MODEL = "smollm2-135m-instruct"
AUTO: Final = "auto"

Quant = Literal["none", "int8", "int4"]
Precision = Literal["auto", "fp32", "fp16", "int8", "k8v4", "int4"]
Program = Literal["python", "command", "server"]
CONTAINER: Final = "cgroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to run and how. Raises ConfigError for a number out of range; the loader checks what names mean."""

    model: str = DEFAULT_MODEL
    """A known name, a path (GGUF or folder) or a hub name."""
    drafter: str | Mapping[str, object] = AUTO
    """auto, none, NAME:option=value,... or several joined by + or ++."""
    draft_model: str | None = None
    """A smaller model that drafts; implies -d draft_model."""
    draft_quant: Quant | None = None
    """none, int8 or int4: round the weights of a draft model or drafting network. Does not change the answers."""
    draft_head_bits: int | None = None
    """4 or 8: round a draft model's output head. Does not change the answers."""
    num_draft: int | None = None
    """Tokens drafted a step, at most; an option of most drafters."""
    draft_options: Mapping[str, object] = field(default_factory=dict)
    """Options of the drafter, by any engine's names."""
    min_draft: int = 0
    """A draft of fewer tokens is dropped, unless it was drawn at random."""
    draft_budget: int = 63
    """Nodes a drafter may propose for a sequence in one step; its own options usually ask for fewer."""
    controller: bool = True
    """Draft only as much as is expected to be faster; else always in full."""
    learn: bool = False
    """Keep what drafters learn for the next start. Off by default, as it tells what was said."""
    device: str = AUTO
    """auto, cpu, cuda or cuda:N."""
    backend: str = AUTO
    """auto, native (CPU kernels) or torch (fp32)."""
    quant: Quant = "none"
    """int8 or int4: round the weights; none keeps them. Changes the model."""
    head_bits: int | None = None
    """4 or 8: round the output head. Faster; changes the model."""
    kv: Precision = AUTO
    """auto, fp32, fp16, int8, k8v4 (int8 keys, int4 values) or int4: keys and values in memory. Changes the model."""
    weight_cache: bool = True
    """Keep packed weights on disk: starts are quicker."""
    threads: int | None = None
    """CPU threads; default: physical cores."""
    max_model_len: int | None = None
    """Tokens of prompt and answer, at most; default: the model's, up to 4096."""
    max_num_seqs: int = 8
    """Sequences that run at once, if there is memory for their keys and values."""
    memory_budget: str | int | None = None
    """What model, drafter, buffers and server may take over Python and torch, such as 600MiB; cgroup: what the
    container allows; none: no limit."""
    program: Program = "python"
    """What runs the model and counts in the memory plan: python (a script), command or server."""
    prefill_chunk: int = 256
    """Prompt tokens read in one step, so that running sequences do not wait for a long prompt."""
    seed: int | None = None
    """Seeds the requests that have no seed of their own; none draws anew in every run."""

    def __post_init__(self) -> None:
        for name in ("draft_budget", "threads", "max_num_seqs", "prefill_chunk"):
            check_least(name, getattr(self, name), 1)
        check_least("min_draft", self.min_draft, 0)
        if self.memory_budget == CONTAINER:
            object.__setattr__(self, "memory_budget", container_budget())
        _ = self.budget_nbytes
        if self.program not in get_args(Program):
            raise ConfigError(unknown("program", self.program, get_args(Program)))
        if self.kv not in get_args(Precision):
            raise ConfigError(unknown("precision of keys and values", self.kv, get_args(Precision)))

    @property
    def budget_nbytes(self) -> int | None:
        """`memory_budget` in bytes. Raises ConfigError for what is no size."""
        if self.memory_budget is None:
            return None
        try:
            return sizes.parse_budget(self.memory_budget)
        except ValueError as error:
            raise ConfigError(
                f"memory_budget must be a size such as 600MiB, got {self.memory_budget!r}, which {error}"
            ) from error

    @classmethod
    def of(cls, model: str | EngineConfig = DEFAULT_MODEL, /, **overrides: Any) -> EngineConfig:
        """A model's configuration, or a given one, with fields changed; other engines' names are read as well.

        What has no effect here is noted on the log. Raises ConfigError for a name that is none, with the closest that
        is, and for a value that cannot be had.
        """
        config = model if isinstance(model, cls) else cls(model=str(model))
        given: dict[str, Any] = {}
        typed: dict[str, str] = {}
        drafting: dict[str, object] = {}
        for name, value in overrides.items():
            spelling = spellings.configuration(name)
            if name in _FIELDS:
                _add(given, typed, name, name, value)
            elif value is None or name == "speculative_config":
                _check_name(name)
            elif spelling is None and spellings.is_drafting(name):
                drafting[name] = value
            elif spelling is None:
                _check_name(name)
            elif spelling.becomes:
                field = spelling.becomes[0]
                _add(given, typed, field, name, _converted(field, name, spelling.read(name, value)))
            else:
                spelling.note(name, value)
        tokenizer = given.pop("tokenizer", None)
        _check_tokenizer(tokenizer, given.get("model", config.model))
        if (speculative := overrides.get("speculative_config")) is not None:
            if given.get("drafter", config.drafter) != AUTO:
                raise ConfigError("give drafter or speculative_config, not both")
            given["drafter"] = _speculative(speculative)
        if drafting:
            given["draft_options"] = {
                **given.get("draft_options", config.draft_options),
                **drafting,
            }
        return replace(config, **given)


_FIELDS = frozenset(one.name for one in fields(EngineConfig))


def _add(
    given: dict[str, Any], typed: dict[str, str], field: str, name: str, value: object
) -> None:
    """One value a field. Raises ConfigError where two names of a field are given that say different things."""
    if field in given and None not in (value, given[field]) and given[field] != value:
        raise ConfigError(f"give {typed[field]} or {name}, not both")
    if given.get(field) is None:
        given[field], typed[field] = value, name


def _converted(field: str, name: str, value: object) -> object:
    return options.convert(EngineConfig, field, value, name) if field in _FIELDS else value


def _check_name(name: str) -> None:
    if name not in (known := spellings.known_names()) and name != "speculative_config":
        raise ConfigError(unknown("option", name, {*_FIELDS, "speculative_config"}, known))


def _check_tokenizer(tokenizer: object, model: object) -> None:
    if tokenizer is not None and str(tokenizer) != str(model):
        raise ConfigError(
            f"tokenizer={str(tokenizer)!r} is not possible here: a model is read with its own "
            f"(allowed: {model})"
        )


def _speculative(given: object) -> str | Mapping[str, object]:
    """A mapping, the JSON of one, or a drafter's name."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, str):
        raise ConfigError(f"speculative_config must be a mapping or its JSON, got {given!r}")
    if given.lstrip().startswith("{"):
        return spellings.read_object("speculative_config", given)
    return given
