"""A small decoder that is trained to draft: some layers of a larger one, between its embedding and its head.

Layers have Llama's form (Qwen2's with biases of q, k and v). Names are those of `model.config.weight_shapes`.

L rows of one text, D hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.model.config import ModelConfig

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


class FloatNorm(nn.RMSNorm):
    """An RMS norm in fp32, whatever autocast multiplies in."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., n) -> (..., n)."""
        return super().forward(x.float())


class DecoderLayer(nn.Module):
    """One layer, begun as the weights of another model's: canonical names without `layers.N.`."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for name in MATRICES:
            weight, bias = weights[name], weights.get(f"{name}.bias")
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
            linear.weight = nn.Parameter(weight.clone())
            if bias is not None:
                linear.bias = nn.Parameter(bias.reshape(-1).clone())
            self.add_module(name, linear)
        for name in ("attn_norm", "mlp_norm"):
            norm = FloatNorm(config.hidden_size, config.norm_eps)
            norm.weight = nn.Parameter(weights[name].reshape(-1).clone())
            self.add_module(name, norm)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(L, D) -> (L, D); a row sees itself and those before it."""
        config, part = self.config, self.get_submodule
        rows = part("attn_norm")(x)
        heads = [part(n)(rows).view(len(x), -1, config.head_dim).transpose(0, 1) for n in "qkv"]
        query, key = _rotate(heads[0], cos, sin), _rotate(heads[1], cos, sin)
        each = config.num_heads // config.num_kv_heads
        key, value = (h.repeat_interleave(each, 0) for h in (key, heads[2]))
        mixed = functional.scaled_dot_product_attention(
            query[None], key[None].to(query.dtype), value[None].to(query.dtype), is_causal=True
        )[0]
        x = x + part("o")(mixed.transpose(0, 1).flatten(1))
        rows = part("mlp_norm")(x)
        out: Tensor = x + part("down")(functional.silu(part("gate")(rows)) * part("up")(rows))
        return out


class DraftDecoder(nn.Module):
    """What is trained: layers and the last norm. Embedding and head are the target's and stay."""

    def __init__(
        self, config: ModelConfig, kept: Sequence[int], weights: Mapping[str, Tensor]
    ) -> None:
        """`weights` are a larger model's, fp32: those of the layers `kept`, and `norm`."""
        super().__init__()
        assert config.rope is not None
        self.config = config
        self.layers = nn.ModuleList(
            DecoderLayer(
                config,
                {
                    name.removeprefix(f"layers.{i}."): weight
                    for name, weight in weights.items()
                    if name.startswith(f"layers.{i}.")
                },
            )
            for i in kept
        )
        self.norm = FloatNorm(config.hidden_size, config.norm_eps)
        self.norm.weight = nn.Parameter(weights["norm"].reshape(-1).clone())

    def forward(self, embedded: Tensor) -> Tensor:
        """What the head's rows multiply, (L, D), of a text's embedded tokens (L, D), the first at position 0."""
        rope = self.config.rope
        assert rope is not None
        half = torch.arange(0, self.config.head_dim, 2).float()
        positions = torch.arange(len(embedded)).float()[:, None]
        angles = (positions * rope.theta ** (-half / self.config.head_dim)).repeat(1, 2)
        x = embedded
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        out: Tensor = self.norm(x)
        return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)
