"""One block over whole texts in fp32, as it is or flattened: what calibration needs, where the row law has no part.

The decoder computes tiles of 8 rows over a cache; here all T tokens of a text are one pass, many times faster.
T tokens, D width, H heads, G kv heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.errors import ConfigError
from forerun.lab.quantize.awq import Inputs
from forerun.lab.quantize.flatten import rounded
from forerun.model.config import ModelConfig, weight_shapes
from forerun.torch import reference as ops
from forerun.weights.codes import Codes

Site = Literal["attn", "o", "mlp", "down"]
"""Where a block multiplies by weights: what q, k and v read, what o reads, what gate and up read, what down reads."""

READERS: Mapping[Site, tuple[str, ...]] = {
    "attn": ("q", "k", "v"),
    "o": ("o",),
    "mlp": ("gate", "up"),
    "down": ("down",),
}


MATRICES = tuple(name for readers in READERS.values() for name in readers)

_SAMPLED = 128
"""About so many rows of a site's inputs are sampled."""


def input_widths(config: ModelConfig) -> set[int]:
    """Return how many inputs the matrices of a block have."""
    shapes = weight_shapes(config).items()
    return {shape[1] for name, shape in shapes if name.rpartition(".")[2] in MATRICES}


def need_supported(config: ModelConfig, what: str) -> None:
    """Raise ConfigError if `WholeBlock` does not compute such a model; `what` is not supported then."""
    reasons = {
        "layers that differ, or experts": config.layers,
        "recurrent layers": config.is_recurrent,
        "attention to latents": config.latent is not None,
        "norms after sublayers": config.norms in ("after", "both"),
        "one norm of attention and MLP": config.norms == "parallel",
        "norms of all of q and k": config.qk_norm == "whole",
        "attention sinks": config.attention_sinks,
        "soft caps": config.attention_cap is not None or config.logits_cap is not None,
        "several streams of states": config.streams is not None,
        "queries that grow": config.query_growth,
        f"activation {config.activation}": config.activation not in ops.ACTIVATIONS,
    }
    missing = [reason for reason, is_there in reasons.items() if is_there]
    if missing:
        raise ConfigError(
            f"{what} of {config.family} is not supported: it has {', '.join(missing)}"
        )


class WholeBlock:
    """A block's weights by their canonical names without `layers.<i>.`."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.weights = weights

    def __call__(self, x: Tensor) -> tuple[Tensor, dict[Site, Tensor]]:
        """The block's output (T, D) for its input (T, D), and what its matrices read."""
        factor = self.config.residual_multiplier
        sites: dict[Site, Tensor] = {"attn": self._norm("attn_norm", x)}
        sites["o"] = self._attend(sites["attn"])
        x = x + self._linear("o", sites["o"]) * factor
        sites["mlp"] = self._norm("mlp_norm", x)
        sites["down"] = self._widen(sites["mlp"])
        return x + self._linear("down", sites["down"]) * factor, sites

    def attention(self, x: Tensor) -> Tensor:
        """Compute what attention adds (T, D) to the block's input (T, D)."""
        return self._linear("o", self._attend(self._norm("attn_norm", x)))

    def mlp(self, x: Tensor) -> Tensor:
        """Compute what the MLP adds (T, D) to the block's input with attention added (T, D)."""
        return self._linear("down", self._widen(self._norm("mlp_norm", x)))

    def _attend(self, x: Tensor) -> Tensor:
        config = self.config
        query, key, value = (self._linear(n, x).view(len(x), -1, config.head_dim) for n in "qkv")
        if config.qk_norm and not config.qk_norm_after_rope:
            query, key = self._norm("q_norm", query), self._norm("k_norm", key)
        if config.rope is not None:
            frequencies = torch.from_numpy(config.rope.inverse_frequencies())
            angles = torch.arange(len(x))[:, None] * frequencies
            factor = config.rope.attention_factor
            cos, sin = angles.cos()[:, None] * factor, angles.sin()[:, None] * factor
            query, key = ops.rope(query, cos, sin), ops.rope(key, cos, sin)
        if config.qk_norm_after_rope:
            query, key = self._norm("q_norm", query), self._norm("k_norm", key)
        # As a batch of one: other shapes take a path that stores the scores of all heads.
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_sees(len(x), config.sliding_window),
            scale=config.scale,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).flatten(1)

    def _widen(self, x: Tensor) -> Tensor:
        activation = ops.ACTIVATIONS[self.config.activation]
        if not self.config.gated_mlp:
            return activation(self._linear("up", x))
        return activation(self._linear("gate", x)) * self._linear("up", x)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weights[name], self.weights.get(f"{name}.bias"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, eps = self.weights[name], self.config.norm_eps
        if self.config.norm == "rms":
            return ops.rms_norm(x, weight, eps)
        return ops.layer_norm(x, weight, self.weights.get(f"{name}.bias"), eps)


def _sees(num_tokens: int, window: int | None) -> Tensor:
    """Which keys (columns) a query (row) sees."""
    distance = torch.arange(num_tokens)[:, None] - torch.arange(num_tokens)
    return (distance >= 0) & (distance < (window or num_tokens))


def advance(block: WholeBlock, states: Tensor) -> None:
    """Replace texts' hidden states (S, T, D) by the block's outputs."""
    for i in range(len(states)):
        states[i] = block(states[i])[0]


def observe(block: WholeBlock, states: Tensor) -> dict[Site, Inputs]:
    """Replace texts' hidden states (S, T, D) by the block's outputs; return what its matrices read."""
    seen: dict[Site, Inputs] = {}
    count = states.shape[0] * states.shape[1]
    step = max(1, count // _SAMPLED)
    for i in range(len(states)):
        states[i], sites = block(states[i])
        for site, x in sites.items():
            if site not in seen:
                each, pairs = torch.zeros(x.shape[1]), torch.zeros(x.shape[1], x.shape[1])
                seen[site] = Inputs(count, each, pairs, each.clone(), x[:0])
            before = seen[site]
            before.magnitude.add_(x.abs().sum(0))
            before.gram.addmm_(x.T, x)
            largest = torch.maximum(before.largest, x.abs().amax(0))
            sample = torch.cat((before.sample, x[(-i * len(x)) % step :: step]))
            seen[site] = replace(before, largest=largest, sample=sample)
    for inputs in seen.values():
        inputs.magnitude.div_(count)
        inputs.gram.div_(count)
    return seen


class FlatBlock(WholeBlock):
    """The block with some of its matrices flattened, as the kernels compute them but for the rounding of sums."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], flat: Mapping[str, Codes]
    ) -> None:
        values = {name: torch.from_numpy(codes.values()) for name, codes in flat.items()}
        super().__init__(config, {**weights, **values})
        self.rows = {name: codes.flat for name, codes in flat.items() if codes.flat is not None}

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return super()._linear(name, rounded(self.rows[name], x) if name in self.rows else x)
