"""How a model's files say it should be sampled: generation_config.json, or `general.sampling.*` of a GGUF.

Where a GGUF says nothing, a family that is known is sampled as its authors advise; all others are decoded greedily.
Which tokens end an answer is the tokenizer's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forerun.core.errors import LoadError, RequestError
from forerun.core.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
FILTERS = ("top_k", "top_p", "min_p")
"""Settings without a meaning in greedy decoding."""
SETTINGS = ("temperature", *FILTERS, "repetition_penalty")
"""What a model's files may set, by the names of `SamplingParams` and generation_config.json."""

ADVISED: Mapping[str, Mapping[str, float]] = {"smollm2": {"temperature": 0.2, "top_p": 0.9}}
"""By `general.basename`, from the model card of SmolLM2-135M-Instruct. Greedily it soon repeats itself."""

_FROM_GGUF = dict(zip(SETTINGS, ("temp", "top_k", "top_p", "min_p", "penalty_repeat"), strict=True))


def from_hf(config: Mapping[str, object], where: str) -> SamplingParams:
    """Return the settings of a generation_config.json. Raises LoadError for a value that is out of range.

    `do_sample` decides whether to sample; without it a temperature or a filter does.
    """
    stated = {name: config[name] for name in SETTINGS if config.get(name) is not None}
    samples = config.get("do_sample")
    if samples is None:
        samples = bool(stated.keys() - {"repetition_penalty"})
    return _params(stated, bool(samples), where)


def from_gguf(metadata: Mapping[str, object], where: str) -> SamplingParams:
    """Return the settings of a GGUF's metadata. Raises LoadError for a value that is out of range."""
    keys = {name: f"general.sampling.{key}" for name, key in _FROM_GGUF.items()}
    stated = {name: metadata[key] for name, key in keys.items() if key in metadata}
    if not stated:
        stated = dict(ADVISED.get(str(metadata.get("general.basename", "")).lower(), {}))
    return _params(stated, bool(stated.keys() - {"repetition_penalty"}), where)


def _params(stated: dict[str, object], samples: bool, where: str) -> SamplingParams:
    if not samples:
        stated = {"repetition_penalty": stated.get("repetition_penalty", 1.0)}
    base = SamplingParams() if samples else GREEDY
    try:
        return replace(base, **stated)  # type: ignore[arg-type]
    except RequestError as error:
        raise LoadError(f"{where}: {error}") from error
