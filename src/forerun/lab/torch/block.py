"""A layer of the torch decoder: attention or a recurrent mixer, then an MLP or experts.

R = TILE rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from forerun.lab.torch import reference as ops
from forerun.lab.torch.cache import TensorCache
from forerun.lab.torch.latent import LatentAttention
from forerun.lab.torch.recurrent import Recurrent
from forerun.lab.torch.sublayers import MLP, Attention, Experts, PerLayer
from forerun.lab.torch.tiles import Tile, Weights

Mixer = Callable[[Tensor, Tile, TensorCache], Tensor]
"""Maps (R, D) to (R, D), and leaves what it will read again in the cache."""


def mixer_of(weights: Weights, layer: int) -> Mixer | None:
    """Return what mixes the rows of a sequence in a layer, None if nothing does."""
    config, kind = weights.config, weights.config.layer(layer)
    if not kind.has_mixer:
        return None
    if kind.recurrent is not None:
        return Recurrent(weights, layer, kind.recurrent)
    if config.latent is not None:
        return LatentAttention(weights, layer, config.latent)
    return Attention(weights, layer)


class Block:
    """One layer: mixer and MLP, each between its norms and added to what came in."""

    NORMS = ("attn", "attn_out", "mlp", "mlp_out", "dense_out", "experts", "experts_out", "router")

    def __init__(self, weights: Weights, layer: int) -> None:
        config, name = weights.config, f"layers.{layer}."
        kind = config.layer(layer)
        self.residual_multiplier = config.residual_multiplier
        self.is_parallel = config.norms == "parallel"
        self.norms = {n: weights.optional_norm(f"{name}{n}_norm") for n in self.NORMS}
        self.mixer = mixer_of(weights, layer)
        self.mlp = MLP(weights, layer) if kind.has_mlp else None
        self.experts = None if kind.experts is None else Experts(weights, layer, kind.experts)
        self.per_layer = None if config.per_layer_width is None else PerLayer(weights, layer)
        self.scale = weights.tensors[name + "scale"] if config.layer_scales else None

    def __call__(self, x: Tensor, tile: Tile, cache: TensorCache) -> Tensor:
        """Map (R, D) to (R, D)."""
        read = self._norm("attn", x)
        if self.mixer is not None:
            x = self._add(x, "attn", self.mixer(read, tile, cache))
        return self._after_mlp(x, read if self.is_parallel else self._norm("mlp", x), tile)

    def _after_mlp(self, x: Tensor, read: Tensor, tile: Tile) -> Tensor:
        """Map (R, D) to (R, D), with what comes after the MLP, which reads rows (R, D)."""
        parts = [] if self.mlp is None else [self._norm("dense_out", self.mlp(read))]
        if self.experts is not None and self.experts.mlp_gate is not None:
            parts = [
                part * ops.sigmoid((read * self.experts.mlp_gate).sum(-1, keepdim=True))
                for part in parts
            ]
        if self.experts is not None:
            has_norms = self.norms["experts"] is not None
            rows, routed = (self._norm(n, x) if has_norms else read for n in ("experts", "router"))
            parts.append(self._norm("experts_out", self.experts(rows, routed)))
        if parts:
            x = self._add(x, "mlp", parts[0] if len(parts) == 1 else parts[0] + parts[1])
        if self.per_layer is not None:
            x = x + self.per_layer(x, tile)
        return x if self.scale is None else x * self.scale

    def _add(self, x: Tensor, part: str, out: Tensor) -> Tensor:
        return x + self._norm(f"{part}_out", out) * self.residual_multiplier

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise where the family does so there."""
        norm = self.norms[name]
        return x if norm is None else norm(x)
