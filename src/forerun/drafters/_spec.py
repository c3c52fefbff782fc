"""Which drafter, with which options: one value, however it was spelled.

`suffix:min_token_prob=0.2` on our command line, `speculative_config={"method": "ngram", ...}` in vLLM's words,
`assistant_model=...` in Hugging Face's, `--model-draft` and `--draft-max` in llama.cpp's: all end as a `DrafterSpec`.
`suffix+draft_model:model=small.gguf` names two: the second is asked where it is expected to be faster (`_fallback`).
With `++` both are asked, for one tree (`_union`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.core import options, registry
from forerun.core.errors import ConfigError, unknown
from forerun.drafters._fallback import Fallback
from forerun.drafters._find import checked, find, is_file
from forerun.drafters._union import Union
from forerun.drafters.base import Drafter, Target

AUTO = "auto"
AUTO_CHOICE = "suffix"

METHODS = {"ngram": "prompt_lookup", "draft": "draft_model", "draft-simple": "draft_model"}
"""Other systems' names of methods we have."""

OPTION_ALIASES = {
    "num_speculative_tokens": "num_draft",
    "num_assistant_tokens": "num_draft",
    "prompt_lookup_num_tokens": "num_draft",
    "num_draft_tokens": "num_draft",
    "draft_max": "num_draft",
    "spec_draft_n_max": "num_draft",
    "prompt_lookup_max": "ngram_max",
    "max_matching_ngram_size": "ngram_max",
    "max_ngram_size": "ngram_max",
    "prompt_lookup_min": "ngram_min",
    "assistant_model": "model",
    "draft_model": "model",
    "model_draft": "model",
    "speculative_model": "model",
    "quantization": "quant",
    "assistant_early_exit": "exit",
    "suffix_decoding_min_token_prob": "min_token_prob",
    "suffix_decoding_max_tree_depth": "max_depth",
    "suffix_decoding_max_spec_factor": "factor",
}
"""vLLM's, Hugging Face's and llama.cpp's names of our drafters' options."""


_NEXT_DRAFTER = re.compile(r",(?=\s*(?:[A-Za-z][\w+-]*|[^,:=]+\.py)\s*(?:[,:+]|$))")


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter's name, or the path of its file, and the options that differ from its defaults.

    `parts` are the drafters of a fallback, in order; with `is_union`, those of a union.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[DrafterSpec, ...] = ()
    is_auto: bool = field(default=False, compare=False)
    """Nothing was asked for: what the model's profile chose takes its place."""
    is_union: bool = False
    built: Drafter | None = None
    """A drafter that was given as an object; it serves one engine."""

    @classmethod
    def of(cls, drafter: str | Mapping[str, object] | Drafter, **given: object) -> DrafterSpec:
        """Read a name, `name:key=value,...` or a mapping with `method`, and options given beside it (None: not given).

        A name may be the path of a Python file; a drafter itself is taken as it is. A draft model without a method
        means `draft_model`, `prompt_lookup_num_tokens` without one means prompt lookup: nothing that is asked for is
        ignored. Raises ConfigError.
        """
        if not isinstance(drafter, str | Mapping):
            name = type(drafter).__name__
            if extra := [key for key, value in given.items() if value is not None]:
                raise ConfigError(f"a {name} is built: it takes no option '{extra[0]}'")
            return cls(name, built=checked(drafter, name))
        if isinstance(drafter, str) and len(parts := _split(drafter)) > 1:
            return cls._combined(parts[::2], parts[1::2], given)
        chosen: dict[str, object]
        if isinstance(drafter, str):
            name, texts = options.parse(drafter)
            chosen = {**texts}
        else:
            chosen = {**drafter}
            name = str(chosen.pop("method", AUTO))
        beside = {k: v for k, v in given.items() if v is not None}
        if not is_file(name):
            name = METHODS.get(name, name).replace("-", "_")
        merged = _canonical(chosen) | _canonical(beside)
        is_auto = name == AUTO and not merged
        if name == AUTO:
            name = _implied({**chosen, **beside})
        if is_file(name):
            find(name)
        elif name not in registry.names("drafters"):
            raise ConfigError(unknown("drafter", name, [AUTO, *registry.names("drafters")]))
        return cls(name, merged, is_auto=is_auto)

    def text(self) -> str:
        """How `-d` spells it, defaults left out: equal texts draft alike. Raises ConfigError for unknown options."""
        if self.built is not None:
            return self.name
        if self.parts:
            sign = "++" if self.is_union else "+"
            return sign.join(part.text() for part in self.parts)
        return options.spell(self.name, options.build(find(self.name).Options, self.options))

    def build(self, target: Target) -> Drafter:
        """The drafter. Raises ConfigError for options it does not have, LoadError for a draft that cannot be read."""
        if self.built is not None:
            return self.built
        if self.parts:
            *before, drafter = [part.build(target) for part in self.parts]
            for first in reversed(before):
                drafter = (Union if self.is_union else Fallback)(first, drafter)
            return drafter
        module = find(self.name)
        chosen = options.build(module.Options, self.options)
        return checked(module.build(chosen, target), self.name)

    @classmethod
    def _combined(
        cls, drafters: list[str], signs: list[str], given: Mapping[str, object]
    ) -> DrafterSpec:
        """Each part by itself; an option given beside them goes to the parts that have it."""
        if len(set(signs)) > 1:
            raise ConfigError(f"'{signs[0].join(drafters)}' with both + and ++: use one of them")
        parts = [cls.of(drafter) for drafter in drafters]
        beside = _canonical({k: v for k, v in given.items() if v is not None})
        known = [_option_names(part.name) for part in parts]
        for name in beside.keys() - set().union(*known):
            raise ConfigError(unknown("option", name, set().union(*known)))
        merged = [
            cls(part.name, {**part.options, **{k: v for k, v in beside.items() if k in names}})
            for part, names in zip(parts, known, strict=True)
        ]
        name = signs[0].join(part.name for part in merged)
        return cls(name, {}, tuple(merged), is_union=signs[0] == "++")


def split_list(drafters: str) -> list[str]:
    """The drafters of a list: a comma ends one unless an option, `key=value` or a bare value, follows."""
    return [part for part in map(str.strip, _NEXT_DRAFTER.split(drafters)) if part]


def _split(drafter: str) -> list[str]:
    """The drafters and the signs between them; a + is one only before a drafter's name: paths may have it."""
    if is_file(path := drafter.partition(":")[0]) and Path(path).expanduser().is_file():
        return [drafter]
    names = "|".join([*registry.names("drafters"), *METHODS]).replace("_", "[-_]")
    return re.split(rf"(\+\+?)(?=(?:{names}|[^:+,]+\.py)(?:[:+]|$))", drafter)


def _option_names(drafter: str) -> set[str]:
    fields = dataclasses.fields(find(drafter).Options)
    return {field.name for field in fields}


def _implied(given: Mapping[str, object]) -> str:
    if "model" in _canonical(given):
        return "draft_model"
    if "exit" in _canonical(given):
        return "early_exit"
    if {"prompt_lookup_num_tokens", "prompt_lookup_max", "max_matching_ngram_size"} & given.keys():
        return "prompt_lookup"
    return AUTO_CHOICE


def _canonical(given: Mapping[str, object]) -> dict[str, object]:
    return {
        OPTION_ALIASES.get(k.replace("-", "_"), k.replace("-", "_")): v for k, v in given.items()
    }
