"""Read other engines' names of our options: keywords of `LLM`, keys of `speculative_config`, flags of the commands.

The tables hold what quickstarts, manuals and Dockerfiles of vLLM, llama.cpp and Hugging Face use; docs/spellings.md
is made of them. A name without a meaning here is accepted with a note on the log, so that a command moves over as it
is; a value that asks for something that cannot be done here is an error that quotes it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from forerun.core import options
from forerun.core.config import AUTO, EngineConfig
from forerun.core.errors import ConfigError, given_as, unknown

_log = logging.getLogger("forerun")


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name of another engine: the option that it is here, or why it has no effect."""

    becomes: str = ""
    """Our option; empty: it has no effect."""
    values: Mapping[str, object] | None = None
    """What the allowed values are here; None: any value, as it is."""
    why: str = ""
    """Why it has no effect, or why other values are not possible."""
    drafter: str = ""
    """The drafter that is meant where none is named."""
    is_flag: bool = False
    """On the command line it may stand without a value."""

    def read(self, typed: str, value: object) -> object:
        """Translate a value. Raises ConfigError with what was typed."""
        if self.values is None:
            return value
        word = str(value).lower()
        if word not in self.values:
            allowed = ", ".join(self.values)
            raise ConfigError(
                f"{quote(typed, value)} is not possible here: {self.why} (allowed: {allowed})"
            )
        return self.values[word]


def _no_effect(why: str, *allowed: str, is_flag: bool = False) -> Spelling:
    return Spelling("", dict.fromkeys(allowed) if allowed else None, why, is_flag=is_flag)


def _flag(why: str) -> Spelling:
    return _no_effect(why, is_flag=True)


_ONE_PROCESS = "a draft model runs in one process, on one device"
_STORED = "weights are used as they are stored; quant rounds them"
_ON_CPU = "there are no layers on a GPU here; device says where the model runs"
_TEMPLATE = "the model's template is used; --raw goes without it"
_READ = "weights are read into memory"
_PRECISIONS = {
    "auto": "auto",
    **dict.fromkeys(("fp16", "f16", "float16"), "fp16"),
    **dict.fromkeys(("fp32", "f32", "float32"), "fp32"),
    **dict.fromkeys(("int8", "q8_0"), "int8"),
    "k8v4": "k8v4",
    **dict.fromkeys(("int4", "q4_1"), "int4"),
}

ENGINE: Mapping[str, Mapping[str, Spelling]] = {
    "vLLM": {
        "max_num_batched_tokens": Spelling("prefill_chunk"),
        "kv_cache_dtype": Spelling(
            "kv", _PRECISIONS, "keys and values are kept as fp32, fp16, int8, k8v4 or int4"
        ),
        "quantization": Spelling(
            "quant", {"int8": "int8", "int4": "int4", "gguf": "none", "none": "none"}, _STORED
        ),
        "dtype": _no_effect(_STORED),
        "gpu_memory_utilization": _no_effect("memory_budget bounds the memory"),
        "trust_remote_code": _flag("code that comes with a model is never run"),
        "enforce_eager": _flag("there are no graphs to capture"),
        "enable_prefix_caching": _flag("prefixes are always reused; the answers are the same"),
        "enable_chunked_prefill": _flag("prompts are always read in chunks, see prefill_chunk"),
        "pipeline_parallel_size": _no_effect(
            "layers are not split over processes; tensor_parallel_size splits each layer", "1"
        ),
        "disable_log_stats": _flag("statistics are read with get_metrics, not logged"),
    },
    "llama.cpp": {
        "n_gpu_layers": _no_effect(_ON_CPU),
        "flash_attn": _flag("attention has one kernel"),
        "ubatch_size": _no_effect("prefill_chunk rows are one pass"),
        "mmap": _flag(f"{_READ}, not mapped"),
        "no_mmap": _flag(f"{_READ}, not mapped"),
        "prompt_cache_all": _flag("prompt_cache keeps answers, too"),
        "mlock": _flag(f"{_READ}, which is not locked"),
        "conversation": _flag(_TEMPLATE),
        "jinja": _flag(_TEMPLATE),
        "metrics": _flag("/metrics is always answered"),
    },
    "Hugging Face": {"device_map": Spelling("device"), "torch_dtype": _no_effect(_STORED)},
}
"""Names of `EngineConfig`'s fields."""

DRAFTING: Mapping[str, Mapping[str, Spelling]] = {
    "vLLM": {
        "num_speculative_tokens": Spelling("num_draft"),
        "prompt_lookup_max": Spelling("ngram_max"),
        "prompt_lookup_min": Spelling("ngram_min"),
        "draft_tensor_parallel_size": _no_effect(_ONE_PROCESS, "1"),
    },
    "llama.cpp": {"draft_p_min": Spelling("min_chance"), "n_gpu_layers_draft": _no_effect(_ON_CPU)},
    "Hugging Face": {
        "assistant_model": Spelling("model"),
        "assistant_early_exit": _no_effect(
            "no layers are left out; draft_model=self drafts with the model itself"
        ),
        "num_assistant_tokens": Spelling("num_draft"),
        "assistant_confidence_threshold": Spelling("min_chance"),
        "prompt_lookup_num_tokens": Spelling("num_draft", drafter="prompt_lookup"),
        "max_matching_ngram_size": Spelling("ngram_max"),
    },
}
"""Names of drafters' options, in a `speculative_config` or as options."""

METHODS: Mapping[str, str] = {
    "ngram": "prompt_lookup",
    "ngram-simple": "prompt_lookup",
    "ngram-mod": "suffix",
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
}
"""vLLM's and llama.cpp's names of drafters."""

SHORT: Mapping[str, str] = {
    "-ngl": "n_gpu_layers",
    "--gpu-layers": "n_gpu_layers",
    "-ngld": "n_gpu_layers_draft",
    "-fa": "flash_attn",
    "-b": "prefill_chunk",
    "--batch-size": "prefill_chunk",
    "-ub": "ubatch_size",
    "-ctk": "kv_cache_dtype",
    "--cache-type-k": "kv_cache_dtype",
    "-ctv": "kv_cache_dtype",
    "--cache-type-v": "kv_cache_dtype",
    "-np": "max_num_seqs",
    "--parallel": "max_num_seqs",
    "-cnv": "conversation",
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
}
"""Flags of llama.cpp and vLLM that are not such a name with dashes."""

FIELDS = frozenset(field.name for field in fields(EngineConfig))
SWITCHES = frozenset(
    field.name for field in fields(EngineConfig) if isinstance(field.default, bool)
)
ENGINE_NAMES = {name: spelling for names in ENGINE.values() for name, spelling in names.items()}
DRAFTING_NAMES = {name: spelling for names in DRAFTING.values() for name, spelling in names.items()}
NAMES = ENGINE_NAMES | DRAFTING_NAMES
SPECULATIVE = "speculative_config"
_METHOD = re.compile(r"(^|\+)([^:+]+)")


def plain(typed: str) -> str:
    """Look a flag up as a keyword: `-ngl` is n_gpu_layers, `--mlock` is mlock."""
    word = SHORT.get(typed) or typed.lstrip("-").replace("-", "_")
    return word.removeprefix("no_") if typed.startswith("--no-") and word not in NAMES else word


def quote(typed: str, value: object) -> str:
    """Repeat a name and its value as they were typed: `-ngl 99`, `dtype='auto'`."""
    if not typed.startswith("-"):
        return f"{typed}={value!r}"
    return typed if isinstance(value, bool) else f"{typed} {value}"


def methods_of(drafter: str) -> tuple[str, ...]:
    """List other engines' names of a drafter."""
    return tuple(name for name, ours in METHODS.items() if ours == drafter)


def names_of(option: str) -> tuple[str, ...]:
    """List other engines' names of a drafter's option."""
    return tuple(name for name, spelling in DRAFTING_NAMES.items() if spelling.becomes == option)


def note(typed: str, value: object, why: str) -> None:
    """Log once that something has no effect."""
    _warn(f"{quote(typed, value)} has no effect: {why}")


@cache
def _warn(message: str) -> None:
    _log.warning(message)


def configure(
    model: str | EngineConfig, given: Mapping[str, Any]
) -> tuple[EngineConfig, dict[str, str]]:
    """Change a configuration, or a model's, by keywords of any engine; and say what our options were called there.

    Raises ConfigError for a name that is none, with the closest that is, and for a value that cannot be had.
    """
    config = model if isinstance(model, EngineConfig) else EngineConfig(model=str(model))
    reading = _Reading()
    for name, value in given.items():
        reading.add(name, value)
    if reading.draft:
        reading.config["draft_options"] = {**config.draft_options, **reading.options()}
    if reading.drafter and reading.config.get("drafter", config.drafter) == AUTO:
        reading.config["drafter"] = reading.drafter
    with given_as(reading.typed):
        return replace(config, **reading.config), reading.typed


def drafter(given: object, typed: dict[str, str] | None = None) -> Any:
    """Translate what says how to draft: `ngram:num_draft=4`, or a `speculative_config`, a mapping or its JSON.

    `typed` gets what our options were called. Raises ConfigError.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = options.read_object(SPECULATIVE, given)
    if isinstance(given, str):
        return _METHOD.sub(lambda match: match[1] + _method(match[2]), given)
    if not isinstance(given, Mapping):
        return given
    reading = _Reading({} if typed is None else typed)
    for name, value in given.items():
        reading.add_draft(name, value)
    chosen = reading.options()
    method = chosen.pop("method", None) or reading.drafter
    return {"method": drafter(method), **chosen} if method else chosen


def _method(typed: str) -> str:
    return METHODS.get(typed.lower().replace("_", "-"), typed)


class _Reading:
    """Collect what was given, under our names."""

    def __init__(self, typed: dict[str, str] | None = None) -> None:
        self.config: dict[str, Any] = {}
        self.draft: dict[str, object] = {}
        self.drafter = ""
        self.typed = {} if typed is None else typed

    def add(self, name: str, value: Any) -> None:
        """Take one keyword of `LLM` or one flag."""
        key = plain(name)
        if key in FIELDS:
            self._put(self.config, key, name, drafter(value) if key == "drafter" else value)
        elif key == SPECULATIVE:
            self._add_speculative(name, value)
        elif key in DRAFTING_NAMES:
            self.add_draft(name, value)
        elif (spelling := ENGINE_NAMES.get(key)) is None:
            raise ConfigError(unknown("option", name, {*FIELDS, SPECULATIVE}, NAMES))
        elif value is not None:
            self._translate(spelling, self.config, name, value)

    def add_draft(self, name: str, value: object) -> None:
        """Take one option of a drafter."""
        if value is not None:
            spelling = DRAFTING_NAMES.get(plain(name), Spelling(plain(name)))
            self.drafter = spelling.drafter or self.drafter
            self._translate(spelling, self.draft, name, value)

    def options(self) -> dict[str, object]:
        """Return the drafter's options; as in vLLM the shortest n-gram bounds the longest one from below."""
        is_vllm = plain(self.typed.get("ngram_min", "")) == "prompt_lookup_min"
        return {**({"ngram_max": self.draft["ngram_min"]} if is_vllm else {}), **self.draft}

    def _translate(
        self, spelling: Spelling, into: dict[str, Any], name: str, value: object
    ) -> None:
        read = spelling.read(name, value)
        if spelling.becomes:
            self._put(into, spelling.becomes, name, read)
        else:
            note(name, value, spelling.why)

    def _add_speculative(self, name: str, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, str | Mapping):
            raise ConfigError(f"{name} must be a mapping or its JSON, got {value!r}")
        self._put(self.config, "drafter", name, drafter(value, self.typed))

    def _put(self, into: dict[str, Any], option: str, name: str, value: Any) -> None:
        """Set an option. Raises ConfigError where two names of it are given that say different things."""
        if value is None:
            into.setdefault(option, None)
            return
        if isinstance(value, str) and name != option and into is self.config:
            with given_as({option: name}):
                value = options.convert(option, value, options.type_hints(EngineConfig)[option])
        before = into.get(option)
        if before is not None and before != value:
            raise ConfigError(f"give {self.typed[option]} or {name}, not both")
        into[option] = value
        self.typed[option] = name
