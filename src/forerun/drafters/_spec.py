"""Which drafter, with which options: one value, however it was spelled.

`suffix:min_token_prob=0.2` on our command line, `speculative_config={"method": "ngram", ...}` in vLLM's words,
`assistant_model=...` in Hugging Face's, `--model-draft` and `--draft-max` in llama.cpp's: all end as a `DrafterSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.core import options, registry
from forerun.core.errors import ConfigError, unknown
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
    "suffix_decoding_min_token_prob": "min_token_prob",
    "suffix_decoding_max_tree_depth": "max_depth",
    "suffix_decoding_max_spec_factor": "factor",
}
"""vLLM's, Hugging Face's and llama.cpp's names of our drafters' options."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter's name and the options that differ from its defaults."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, drafter: str | Mapping[str, object], **given: object) -> DrafterSpec:
        """Read a name, `name:key=value,...` or a mapping with `method`, and options given beside it (None: not given).

        A draft model without a method means `draft_model`, `prompt_lookup_num_tokens` without one means prompt lookup:
        nothing that is asked for is ever silently off. Raises ConfigError.
        """
        chosen: dict[str, object]
        if isinstance(drafter, str):
            name, texts = options.parse(drafter)
            chosen = {**texts}
        else:
            chosen = {**drafter}
            name = str(chosen.pop("method", AUTO))
        beside = {k: v for k, v in given.items() if v is not None}
        name = METHODS.get(name, name).replace("-", "_")
        if name == AUTO:
            name = _implied({**chosen, **beside})
        merged = _canonical(chosen) | _canonical(beside)
        if name not in registry.names("drafters"):
            raise ConfigError(unknown("drafter", name, [AUTO, *registry.names("drafters")]))
        return cls(name, merged)

    def build(self, target: Target) -> Drafter:
        """The drafter. Raises ConfigError for options it does not have, LoadError for a draft that cannot be read."""
        module = registry.load("drafters", self.name)
        drafter: Drafter = module.build(options.build(module.Options, self.options), target)
        return drafter


def _implied(given: Mapping[str, object]) -> str:
    if "model" in _canonical(given):
        return "draft_model"
    if {"prompt_lookup_num_tokens", "prompt_lookup_max", "max_matching_ngram_size"} & given.keys():
        return "prompt_lookup"
    return AUTO_CHOICE


def _canonical(given: Mapping[str, object]) -> dict[str, object]:
    return {
        OPTION_ALIASES.get(k.replace("-", "_"), k.replace("-", "_")): v for k, v in given.items()
    }
