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

from forerun.core.errors import LoadError
from forerun.nn.arch._settings import Settings
from forerun.nn.config import RopeConfig


def rope_from_hf(settings: Settings, head_dim: int) -> RopeConfig:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` as older files have it."""
    scaling: dict[str, Any] = dict(
        settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    )
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise LoadError("rotary settings that differ between layers are not supported")
    theta = float(scaling.get("rope_theta") or settings.get("rope_theta", 10000.0))
    partial = scaling.get("partial_rotary_factor") or settings.get("partial_rotary_factor", 1.0)
    scaling.setdefault("max_position_embeddings", settings["max_position_embeddings"])
    original = settings.get("original_max_position_embeddings")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return scaled(kind, theta, int(head_dim * partial), scaling)


def rope_from_gguf(settings: Settings, head_dim: int) -> RopeConfig:
    """From `<arch>.rope.*` and the factor tensors; `rope_freqs.weight` holds llama3's divisors ready-made."""
    theta = float(settings.get("rope.freq_base", 10000.0))
    rotary_dim = int(settings.get("rope.dimension_count", head_dim))
    checkpoint = settings.checkpoint
    names = checkpoint.names()
    if "rope_freqs.weight" in names:
        factors = tuple(checkpoint.tensor("rope_freqs.weight").dequantize().flatten().tolist())
        return RopeConfig(theta, rotary_dim, factors)
    scaling = {
        "factor": settings.get("rope.scaling.factor", settings.get("rope.scale_linear")),
        "max_position_embeddings": settings["context_length"],
        "original_max_position_embeddings": settings.get("rope.scaling.original_context_length"),
        "attention_factor": settings.get("rope.scaling.attn_factor"),
    }
    scaling = {key: value for key, value in scaling.items() if value is not None}
    kind = str(settings.get("rope.scaling.type", "linear" if "factor" in scaling else "none"))
    for length in ("long", "short"):
        if f"rope_factors_{length}.weight" in names:
            kind = "longrope"
            tensor = checkpoint.tensor(f"rope_factors_{length}.weight")
            scaling[f"{length}_factor"] = tensor.dequantize().flatten().tolist()
    return scaled(kind, theta, rotary_dim, scaling)


def scaled(kind: str, theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> RopeConfig:
    """The embedding under a scaling of Hugging Face's name. Raises LoadError if it is unknown."""
    if kind in ("default", "none"):
        return RopeConfig(theta, rotary_dim)
    builders = {"linear": _linear, "llama3": _llama3, "longrope": _longrope, "yarn": _yarn}
    kind = "longrope" if kind == "su" else kind
    if kind not in builders:
        raise LoadError(f"rope scaling '{kind}' is not supported: {', '.join(builders)} are")
    try:
        return builders[kind](theta, rotary_dim, scaling)
    except KeyError as error:
        raise LoadError(f"rope scaling '{kind}' lacks its parameter {error}") from None


def _wavelengths(theta: float, rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return 2 * math.pi * theta**exponents


def _linear(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> RopeConfig:
    return RopeConfig(theta, rotary_dim, (float(scaling["factor"]),) * (rotary_dim // 2))


def _llama3(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> RopeConfig:
    """Divide slow features by `factor`, leave fast ones, blend the band between in frequency."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = scaling["original_max_position_embeddings"] / _wavelengths(theta, rotary_dim)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    factors = 1 / (kept + (1 - kept) / float(scaling["factor"]))
    return RopeConfig(theta, rotary_dim, tuple(factors.tolist()))


def _yarn(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> RopeConfig:
    """As llama3 with a band counted in feature indices, and sharper attention."""
    original = scaling.get("original_max_position_embeddings") or scaling["max_position_embeddings"]
    factor = float(scaling.get("factor") or scaling["max_position_embeddings"] / original)
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def feature(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = feature(fast), feature(slow)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    steps = torch.arange(rotary_dim // 2, dtype=torch.float64)
    divided = ((steps - first) / max(last - first, 0.001)).clamp(0, 1)
    factors = 1 / (1 - divided + divided / factor)
    return RopeConfig(theta, rotary_dim, tuple(factors.tolist()), _sharpness(factor, scaling))


def _sharpness(factor: float, scaling: Mapping[str, Any]) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(float(scaling["mscale"])) / scale(float(scaling["mscale_all_dim"]))
    return scale(1)


def _longrope(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> RopeConfig:
    """A divisor a feature. Models carry two lists and mean to switch at the original context length.

    One is chosen for good, the long one if the model's context is longer than the original: switching in the middle of
    a text would leave keys of both kinds in the cache. (Texts below the original length then use the long list, too.)
    """
    longest = int(scaling["max_position_embeddings"])
    original = int(scaling.get("original_max_position_embeddings") or longest)
    stretch = longest / original
    factors = scaling["long_factor"] if stretch > 1 else scaling["short_factor"]
    sharpness = scaling.get("attention_factor")
    if sharpness is None:
        stretch = float(scaling.get("factor") or stretch)
        sharpness = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    if len(factors) != rotary_dim // 2:
        raise LoadError(
            f"longrope has {len(factors)} factors for {rotary_dim // 2} rotary frequencies"
        )
    return RopeConfig(theta, rotary_dim, tuple(map(float, factors)), float(sharpness))
