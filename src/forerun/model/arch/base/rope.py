"""Rotary settings of Hugging Face and GGUF files, brought down to `RopeConfig`: divisors of the inverse frequencies.

linear divides all alike (Chen et al., arXiv 2306.15595); llama3 and yarn (Peng et al., arXiv 2309.00071) spare the fast
features; longrope (Ding et al., arXiv 2402.13753) lists a divisor for each. Dynamic NTK changes the angles of texts
beyond the first length, which would make cached keys wrong: up to that length, the model's context, nothing is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.settings import Settings, number_in
from forerun.model.config import RopeConfig

Scaled = tuple[tuple[float, ...], float]
"""Divisors of the inverse frequencies, and the factor on cos and sin."""

_ORIGINAL = "original_max_position_embeddings"
_THETA = (1.001, 1e12)
_FACTOR = (1e-3, 1e6)
_LENGTH = (1, 1 << 28)
_STILL = 1e30
"""A divisor that stops a feature, as llama.cpp has it."""


def ropes(
    settings: Settings,
    head_dim: int,
    local_theta: float | None = None,
    is_local_plain: bool = False,
    scaling: Mapping[str, Any] | None = None,
    local_dim: int | None = None,
) -> tuple[RopeConfig, RopeConfig]:
    """Return the embedding of layers that see everything, and that of layers with a sliding window.

    Where the file describes one, the latter have the same; or, `is_local_plain`, it without scaling. `local_theta` is
    their theta where a file has none for them, None for the same. `scaling` adds to what the file says of scaling.
    `local_dim` is the dimension of their heads if it is another.
    """
    extra = scaling or {}
    if settings.is_gguf:
        full = rope_from_gguf(settings, head_dim, extra)
        key = "rope.freq_base_swa"
    else:
        given = given_scaling(settings)
        if any(isinstance(value, Mapping) for value in given.values()):
            kinds = [given.get(f"{kind}_attention") for kind in ("full", "sliding")]
            full, local = (
                rope_from_hf(settings, dim, kind or kinds[0] or {}, extra)
                for kind, dim in zip(kinds, (head_dim, local_dim or head_dim), strict=True)
            )
            return full, local
        full = rope_from_hf(settings, head_dim, given, extra)
        key = "rope_local_base_freq"
    theta = settings.number(key, local_theta or full.theta, low=_THETA[0], high=_THETA[1])
    if is_local_plain:
        return full, RopeConfig(theta, local_dim or full.rotary_dim)
    return full, replace(full, theta=theta)


def given_scaling(settings: Settings) -> Mapping[str, Any]:
    """Return `rope_parameters`, or `rope_scaling` as older files have it."""
    key = "rope_parameters"  # null, too, means the usual ones
    given = settings.get(key) or settings.get("rope_scaling") or settings.assumed.get(key, {})
    if not isinstance(given, Mapping):
        raise LoadError(f"the rotary settings are {short_repr(given)}, but must be an object")
    return given


def rope_from_hf(
    settings: Settings, head_dim: int, given: Mapping[str, Any], extra: Mapping[str, Any]
) -> RopeConfig:
    """Read rotary settings; older files have `rope_theta` beside them. Raises LoadError."""
    if not isinstance(given, Mapping):
        raise LoadError(f"the rotary settings are {short_repr(given)}, but must be an object")
    beside = {key: settings.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    longest = {"max_position_embeddings": settings.size("max_position")}
    parts = (beside, longest, given, {_ORIGINAL: settings.get(_ORIGINAL)}, extra)
    rope = rope_of(head_dim, *parts)
    _allow_stretched(settings, _kind_of(given), _Scaling(*parts))
    return rope


def _kind_of(given: Mapping[str, Any]) -> object:
    return given.get("rope_type") or given.get("type") or "default"


def _allow_stretched(settings: Settings, kind: object, scaling: _Scaling) -> None:
    """Let a model's context be as long as yarn makes it, which files need not say: `factor` times the original."""
    if kind != "yarn" or not {"factor", _ORIGINAL} <= scaling.values.keys():
        return
    longest = int(scaling.number("factor") * scaling.number(_ORIGINAL, None, *_LENGTH))
    settings.fixed["max_position"] = max(settings.size("max_position"), min(longest, _LENGTH[1]))


def rope_of(head_dim: int, *parts: Mapping[str, Any]) -> RopeConfig:
    """Read rotary settings by Hugging Face's names, the last that is not null of each. Raises LoadError."""
    scaling = _Scaling(*parts)
    theta = scaling.number("rope_theta", 10000.0, *_THETA)
    partial = scaling.number("partial_rotary_factor", 1.0, 0, 1)
    kind = _kind_of(scaling.values)
    rotary_dim = head_dim if kind == "proportional" else int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise LoadError(
            f"'partial_rotary_factor' is {partial:g}, which leaves {rotary_dim} of {head_dim} features: "
            "it must leave an even number"
        )
    return scaled(kind, theta, rotary_dim, scaling)


def rope_from_gguf(settings: Settings, head_dim: int, extra: Mapping[str, Any]) -> RopeConfig:
    """Read `<arch>.rope.*` and the factor tensors; `rope_freqs.weight` holds llama3's divisors ready-made."""
    theta = settings.number("rope.freq_base", 10000.0, low=_THETA[0], high=_THETA[1])
    rotary_dim = settings.integer("rope.dimension_count", head_dim, low=2, high=head_dim)
    if rotary_dim % 2:
        raise LoadError(
            f"'{settings.prefix}rope.dimension_count' is {rotary_dim}, but must be even"
        )
    names = settings.checkpoint.names()
    sharper = settings.number("rope.scaling.attn_factor", 1.0, low=_FACTOR[0])

    def listed(name: str) -> object:
        return settings.checkpoint.tensor(name).dequantize().flatten().tolist()

    if "rope_freqs.weight" in names:
        ready = _Scaling({"rope_freqs.weight": listed("rope_freqs.weight")})
        divisors = ready.factors("rope_freqs.weight", rotary_dim, 2 * _STILL)
        return RopeConfig(theta, rotary_dim, divisors, sharper)
    scaling: dict[str, Any] = {
        "factor": settings.get("rope.scaling.factor", settings.get("rope.scale_linear")),
        "max_position_embeddings": settings.size("max_position"),
        _ORIGINAL: settings.get("rope.scaling.original_context_length"),
        "beta_fast": settings.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": settings.get("rope.scaling.yarn_beta_slow"),
    }
    all_dims = settings.number("rope.scaling.yarn_log_multiplier", 0.0, low=0.0)
    if all_dims:
        scaling |= {"mscale": 1.0, "mscale_all_dim": all_dims}
    kind = settings.text("rope.scaling.type", "linear" if scaling["factor"] else "none")
    for length in ("long", "short"):
        if f"rope_factors_{length}.weight" in names:
            kind = "longrope"
            scaling[f"{length}_factor"] = listed(f"rope_factors_{length}.weight")
    if kind == "longrope":  # instead of the usual one; of all others it is times that
        scaling["attention_factor"] = settings.get("rope.scaling.attn_factor")
    if kind == "yarn" and settings.number("rope.scaling.yarn_ext_factor", 1.0, low=-1e6) >= 0:
        settings.reject("rope.scaling.yarn_ext_factor", 1.0)  # below 0: the usual one
    values = _Scaling(scaling, extra)
    rope = scaled(kind, theta, rotary_dim, values)
    if kind != "longrope":
        rope = replace(rope, attention_factor=rope.attention_factor * sharper)
    _allow_stretched(settings, kind, values)
    return rope


class _Scaling:
    """Parameters of a rope scaling under Hugging Face's names; LoadError for what is missing or out of range."""

    def __init__(self, *values: Mapping[str, Any]) -> None:
        """Take the last value of each key that is not null."""
        self.values = {k: v for part in values for k, v in part.items() if v is not None}

    def number(
        self, key: str, default: Any = None, low: float = _FACTOR[0], high: float = _FACTOR[1]
    ) -> float:
        """Return the number under a key. Without a default (None) it must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise LoadError(f"'{key}' is missing")
        return number_in(key, value, low, high)

    def factors(self, key: str, rotary_dim: int, largest: float = _FACTOR[1]) -> tuple[float, ...]:
        """Return a list of divisors, one a rotary frequency."""
        factors = self.values.get(key, [])
        if not isinstance(factors, list) or len(factors) != rotary_dim // 2:
            given = len(factors) if isinstance(factors, list) else short_repr(factors)
            raise LoadError(f"'{key}' has {given} factors for {rotary_dim // 2} rotary frequencies")
        return tuple(number_in(key, factor, _FACTOR[0], largest) for factor in factors)

    def stretched(self) -> tuple[float, float]:
        """Return the context the model was first trained with, by default all of it, and how much longer it is."""
        known = self.values.get(_ORIGINAL)
        longest = self.number("max_position_embeddings", known, *_LENGTH)
        original = self.number(_ORIGINAL, longest, *_LENGTH)
        return original, longest / original


def scaled(kind: object, theta: float, rotary_dim: int, scaling: _Scaling) -> RopeConfig:
    """Return the embedding under a scaling of Hugging Face's name. Raises LoadError if it is unknown."""
    if kind in ("default", "none"):
        return RopeConfig(theta, rotary_dim)
    if kind == "dynamic":
        return RopeConfig(theta * _ntk_growth(rotary_dim, scaling), rotary_dim)
    kind = "longrope" if kind == "su" else kind
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise LoadError(
            f"rope scaling {short_repr(kind)} is not supported: {', '.join(('dynamic', *_SCALINGS))} are"
        )
    try:
        rope = RopeConfig(theta, rotary_dim, *_SCALINGS[kind](theta, rotary_dim, scaling))
        if kind == "longrope" and "short_factor" in scaling.values:
            original, short = scaling.stretched()[0], scaling.factors("short_factor", rotary_dim)
            rope = replace(rope, short_factors=short, short_length=int(original))
        return rope
    except LoadError as error:
        raise LoadError(f"rope scaling '{kind}': {error}") from None


def _ntk_growth(rotary_dim: int, scaling: _Scaling) -> float:
    """Return by how much theta is larger: by `alpha` at any length (Hunyuan), else not within the model's context.

    Dynamic NTK lets it grow with a text that is longer, which the context does not allow.
    """
    if rotary_dim < 4:
        raise LoadError("rope scaling 'dynamic' needs at least 4 features of a head")
    return float(scaling.number("alpha", 1.0) ** (rotary_dim / (rotary_dim - 2)))


def _linear(theta: float, rotary_dim: int, scaling: _Scaling) -> Scaled:
    return (scaling.number("factor"),) * (rotary_dim // 2), 1.0


def _proportional(theta: float, rotary_dim: int, scaling: _Scaling) -> Scaled:
    """Turn the first features alone, as fast as all of the head would; the others stay (Gemma 4)."""
    turning = int(scaling.number("partial_rotary_factor", 1.0, 0, 1) * rotary_dim // 2)
    factor = scaling.number("factor", 1.0)
    return (factor,) * turning + (_STILL,) * (rotary_dim // 2 - turning), 1.0


def _llama3(theta: float, rotary_dim: int, scaling: _Scaling) -> Scaled:
    """Divide slow features by `factor`, leave fast ones, blend the band between in frequency."""
    low, high, factor = map(scaling.number, ("low_freq_factor", "high_freq_factor", "factor"))
    if high <= low:
        raise LoadError(
            f"'high_freq_factor' is {high:g}, but must exceed 'low_freq_factor' {low:g}"
        )
    original = scaling.number(_ORIGINAL, None, *_LENGTH)
    exponents = np.arange(0, rotary_dim, 2) / rotary_dim
    turns = original / (2 * math.pi * theta**exponents)
    unscaled = ((turns - low) / (high - low)).clip(0, 1)
    return tuple((1 / (unscaled + (1 - unscaled) / factor)).tolist()), 1.0


def _yarn(theta: float, rotary_dim: int, scaling: _Scaling) -> Scaled:
    """As llama3 with a band counted in feature indices, and sharper attention."""
    original, stretch = scaling.stretched()
    factor = scaling.number("factor", stretch)

    def feature(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = feature(scaling.number("beta_fast", 32))
    last = feature(scaling.number("beta_slow", 1))
    if scaling.values.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    steps = np.arange(rotary_dim // 2)
    divided = ((steps - first) / max(last - first, 0.001)).clip(0, 1)
    divisors = 1 / (1 - divided + divided / factor)
    return tuple(divisors.tolist()), _yarn_sharpness(factor, scaling)


def _yarn_sharpness(factor: float, scaling: _Scaling) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if "attention_factor" in scaling.values:
        return scaling.number("attention_factor")
    if scaling.values.get("mscale") and scaling.values.get("mscale_all_dim"):
        return scale(scaling.number("mscale")) / scale(scaling.number("mscale_all_dim"))
    return scale(1)


def _longrope(theta: float, rotary_dim: int, scaling: _Scaling) -> Scaled:
    """Return a divisor a feature. Models carry two lists and mean to switch at the original context length.

    One is chosen for good: switching in the middle of a text would leave keys of both kinds in the cache. This is the
    long one if the model's context is longer than the original; `RopeConfig.within` takes the short one.
    """
    original, stretch = scaling.stretched()
    factors = scaling.factors("long_factor" if stretch > 1 else "short_factor", rotary_dim)
    if "attention_factor" in scaling.values:
        return factors, scaling.number("attention_factor")
    stretch = scaling.number("factor", stretch)
    if stretch <= 1 or original <= 1:
        return factors, 1.0
    return factors, math.sqrt(1 + math.log(stretch) / math.log(original))


_SCALINGS: Mapping[str, Callable[[float, int, _Scaling], Scaled]] = {
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}
