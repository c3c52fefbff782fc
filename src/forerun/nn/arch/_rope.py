"""Rotary settings of Hugging Face and GGUF files, brought down to `RopeConfig`: divisors of the inverse frequencies.

linear divides all alike (Chen et al., arXiv 2306.15595); llama3 and yarn (Peng et al., arXiv 2309.00071) spare the fast
features; longrope (Ding et al., arXiv 2402.13753) lists a divisor for each. What changes the angles while a text grows
(dynamic NTK) is refused: it would make the cached keys wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from forerun.core.errors import LoadError, shown
from forerun.nn.arch._settings import Settings, number_in
from forerun.nn.config import RopeConfig

_THETA = (1.001, 1e12)
_FACTOR = (1e-3, 1e6)
_LENGTH = (1, 1 << 28)


def rope_from_hf(settings: Settings, head_dim: int) -> RopeConfig:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` as older files have it."""
    said = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise LoadError(f"the rotary settings are {shown(said)}, but must be an object")
    if any(isinstance(value, Mapping) for value in said.values()):
        raise LoadError("rotary settings that differ between layers are not supported")
    scaling = _Scaling({key: value for key, value in said.items() if value is not None})
    theta = scaling.number("rope_theta", settings.get("rope_theta", 10000.0), *_THETA)
    partial = scaling.number(
        "partial_rotary_factor", settings.get("partial_rotary_factor", 1.0), 0, 1
    )
    scaling.values.setdefault("max_position_embeddings", settings.size("max_position"))
    original = settings.get("original_max_position_embeddings")
    if original is not None:
        scaling.values["original_max_position_embeddings"] = original
    kind = scaling.values.get("rope_type") or scaling.values.get("type") or "default"
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise LoadError(
            f"'partial_rotary_factor' is {partial:g}, which leaves {rotary_dim} of {head_dim} features: "
            "it must leave an even number"
        )
    return scaled(kind, theta, rotary_dim, scaling)


def rope_from_gguf(settings: Settings, head_dim: int) -> RopeConfig:
    """From `<arch>.rope.*` and the factor tensors; `rope_freqs.weight` holds llama3's divisors ready-made."""
    theta = settings.number("rope.freq_base", 10000.0, low=_THETA[0], high=_THETA[1])
    rotary_dim = settings.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if rotary_dim % 2:
        raise LoadError(
            f"'{settings.prefix}rope.dimension_count' is {rotary_dim}, but must be even"
        )
    checkpoint = settings.checkpoint
    names = checkpoint.names()
    if "rope_freqs.weight" in names:
        factors = checkpoint.tensor("rope_freqs.weight").dequantize().flatten().tolist()
        return _with_factors(theta, rotary_dim, factors, "rope_freqs.weight")
    scaling = {
        "factor": settings.get("rope.scaling.factor", settings.get("rope.scale_linear")),
        "max_position_embeddings": settings.size("max_position"),
        "original_max_position_embeddings": settings.get("rope.scaling.original_context_length"),
        "attention_factor": settings.get("rope.scaling.attn_factor"),
    }
    scaling = {key: value for key, value in scaling.items() if value is not None}
    kind = settings.text("rope.scaling.type", "linear" if "factor" in scaling else "none")
    for length in ("long", "short"):
        if f"rope_factors_{length}.weight" in names:
            kind = "longrope"
            tensor = checkpoint.tensor(f"rope_factors_{length}.weight")
            scaling[f"{length}_factor"] = tensor.dequantize().flatten().tolist()
    return scaled(kind, theta, rotary_dim, _Scaling(scaling))


class _Scaling:
    """Parameters of a rope scaling under Hugging Face's names; LoadError for what is missing or out of range."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def number(self, key: str, default: Any, low: float, high: float) -> float:
        """The number under a key. Without a default (None) it must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise LoadError(f"'{key}' is missing")
        return number_in(key, value, low, high)

    def original(self) -> float:
        """The context the model was trained with before it was stretched; by default all of it."""
        longest = self.values["max_position_embeddings"]
        return self.number("original_max_position_embeddings", longest, *_LENGTH)


def scaled(kind: object, theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    """The embedding under a scaling of Hugging Face's name. Raises LoadError if it is unknown."""
    if kind in ("default", "none"):
        return RopeConfig(theta, rotary_dim)
    builders = {"linear": _linear, "llama3": _llama3, "longrope": _longrope, "yarn": _yarn}
    kind = "longrope" if kind == "su" else kind
    if not isinstance(kind, str) or kind not in builders:
        raise LoadError(f"rope scaling {shown(kind)} is not supported: {', '.join(builders)} are")
    try:
        return builders[kind](theta, rotary_dim, scaling)
    except LoadError as error:
        raise LoadError(f"rope scaling '{kind}': {error}") from None


def _with_factors(
    theta: float, rotary_dim: int, factors: object, name: str, attention_factor: float = 1.0
) -> RopeConfig:
    """With divisors from the file."""
    if not isinstance(factors, list) or len(factors) != rotary_dim // 2:
        given = len(factors) if isinstance(factors, list) else shown(factors)
        raise LoadError(f"'{name}' has {given} factors for {rotary_dim // 2} rotary frequencies")
    checked = tuple(number_in(name, factor, *_FACTOR) for factor in factors)
    return RopeConfig(theta, rotary_dim, checked, attention_factor)


def _wavelengths(theta: float, rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return 2 * math.pi * theta**exponents


def _linear(theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    factor = scaling.number("factor", None, *_FACTOR)
    return RopeConfig(theta, rotary_dim, (factor,) * (rotary_dim // 2))


def _llama3(theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    """Divide slow features by `factor`, leave fast ones, blend the band between in frequency."""
    low = scaling.number("low_freq_factor", None, *_FACTOR)
    high = scaling.number("high_freq_factor", None, *_FACTOR)
    factor = scaling.number("factor", None, *_FACTOR)
    if high <= low:
        raise LoadError(
            f"'high_freq_factor' is {high:g}, but must exceed 'low_freq_factor' {low:g}"
        )
    original = scaling.number("original_max_position_embeddings", None, *_LENGTH)
    turns = original / _wavelengths(theta, rotary_dim)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    factors = 1 / (kept + (1 - kept) / factor)
    return RopeConfig(theta, rotary_dim, tuple(factors.tolist()))


def _yarn(theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    """As llama3 with a band counted in feature indices, and sharper attention."""
    original = scaling.original()
    stretch = scaling.values["max_position_embeddings"] / original
    factor = scaling.number("factor", stretch, *_FACTOR)
    fast, slow = (
        scaling.number(key, n, *_FACTOR) for key, n in (("beta_fast", 32), ("beta_slow", 1))
    )

    def feature(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = feature(fast), feature(slow)
    if scaling.values.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    steps = torch.arange(rotary_dim // 2, dtype=torch.float64)
    divided = ((steps - first) / max(last - first, 0.001)).clamp(0, 1)
    factors = 1 / (1 - divided + divided / factor)
    return RopeConfig(theta, rotary_dim, tuple(factors.tolist()), _sharpness(factor, scaling))


def _sharpness(factor: float, scaling: _Scaling) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if "attention_factor" in scaling.values:
        return scaling.number("attention_factor", None, *_FACTOR)
    if scaling.values.get("mscale") and scaling.values.get("mscale_all_dim"):
        over, under = (scaling.number(k, None, *_FACTOR) for k in ("mscale", "mscale_all_dim"))
        return scale(over) / scale(under)
    return scale(1)


def _longrope(theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    """A divisor a feature. Models carry two lists and mean to switch at the original context length.

    One is chosen for good, the long one if the model's context is longer than the original: switching in the middle of
    a text would leave keys of both kinds in the cache. (Texts below the original length then use the long list, too.)
    """
    original = scaling.original()
    stretch = scaling.values["max_position_embeddings"] / original
    name = "long_factor" if stretch > 1 else "short_factor"
    if "attention_factor" in scaling.values:
        sharpness = scaling.number("attention_factor", None, *_FACTOR)
    else:
        stretch = scaling.number("factor", stretch, *_FACTOR)
        sharpness = 1.0
        if stretch > 1 and original > 1:
            sharpness = math.sqrt(1 + math.log(stretch) / math.log(original))
    factors = scaling.values.get(name, [])
    return _with_factors(theta, rotary_dim, factors, name, sharpness)
