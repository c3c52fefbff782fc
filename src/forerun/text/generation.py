"""How a model's files say it should be sampled: generation_config.json, or `general.sampling.*` of a GGUF.

Where a GGUF says nothing, a family that is known is sampled as its authors advise; all others are decoded greedily.
Which tokens end an answer is the tokenizer's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from forerun.core.errors import LoadError, RequestError
from forerun.core.params import SamplingParams

_log = logging.getLogger(__name__)
GREEDY = SamplingParams(temperature=0.0)
FILTERS = ("top_k", "top_p", "min_p")
"""Settings without a meaning in greedy decoding."""
SETTINGS = ("temperature", *FILTERS, "repetition_penalty")
"""What a model's files may set, by the names of `SamplingParams` and generation_config.json."""

UNUSED: Mapping[str, object] = {
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "stop_strings", "watermarking_config")),
    **dict.fromkeys(("exponential_decay_length_penalty", "penalty_alpha", "dola_layers")),
    **{"no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "num_beams": 1, "typical_p": 1.0},
    **{"epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "guidance_scale": 1.0, "top_h": None},
}  # fmt: skip
"""What else a generation_config.json may set that changes answers in transformers, and its value for nothing."""

ADVISED: Mapping[str, Mapping[str, float]] = {"smollm2": {"temperature": 0.2, "top_p": 0.9}}
"""By `general.basename`, from the model card of SmolLM2-135M-Instruct. Greedily it soon repeats itself."""

UNUSED_GGUF: Mapping[str, object] = {
    "mirostat": 0,
    "xtc_probability": 0.0,
    "sequence": "",
    "penalty_last_n": -1,
}
"""What else `general.sampling.*` may set that changes answers in llama.cpp, and its value for nothing."""

_FROM_GGUF = dict(zip(SETTINGS, ("temp", "top_k", "top_p", "min_p", "penalty_repeat"), strict=True))


def from_hf(config: Mapping[str, object], where: str) -> SamplingParams:
    """Return the settings of a generation_config.json. Raises LoadError for a value that is out of range.

    `do_sample` decides whether to sample; without it a temperature or a filter does.
    """
    stated = {name: config[name] for name in SETTINGS if config.get(name) is not None}
    _name_unused(config, UNUSED, where)
    samples = config.get("do_sample")
    if samples is None:
        samples = bool(stated.keys() - {"repetition_penalty"})
    return _params(stated, bool(samples), where)


def from_gguf(metadata: Mapping[str, object], where: str) -> SamplingParams:
    """Return the settings of a GGUF's metadata. Raises LoadError for a value that is out of range."""
    keys = {name: f"general.sampling.{key}" for name, key in _FROM_GGUF.items()}
    stated = {name: metadata[key] for name, key in keys.items() if key in metadata}
    unused = {f"general.sampling.{key}": off for key, off in UNUSED_GGUF.items()}
    _name_unused(metadata, unused, where)
    if not stated:
        stated = dict(ADVISED.get(str(metadata.get("general.basename", "")).lower(), {}))
    return _params(stated, bool(stated.keys() - {"repetition_penalty"}), where)


def _name_unused(given: Mapping[str, object], usual: Mapping[str, object], where: str) -> None:
    unused = [key for key, off in usual.items() if given.get(key) not in (None, off, [], {})]
    if unused:
        _log.warning("%s: %s left out: what they ask for is not done", where, ", ".join(unused))


def _params(stated: dict[str, object], samples: bool, where: str) -> SamplingParams:
    if not samples:
        stated = {"repetition_penalty": stated.get("repetition_penalty", 1.0)}
    base = SamplingParams() if samples else GREEDY
    try:
        return replace(base, **stated)  # type: ignore[arg-type]
    except RequestError as error:
        raise LoadError(f"{where}: {error}") from error
