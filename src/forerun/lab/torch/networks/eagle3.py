"""EAGLE-3 in torch: what is trained, and the oracle of the native one.

The formulas stand in `drafters/eagle3/config.py`. D hidden width, L rows, S rows before them, H heads, G kv heads, E
head dim, V' draft vocabulary, B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.drafters.eagle3.config import NUM_LAYERS, Eagle3Config


class Keys(NamedTuple):
    """Keys, rotated, and values of some rows, each (B, G, S, E)."""

    keys: Tensor
    values: Tensor


class EagleNorm(nn.RMSNorm):
    """An RMS norm in fp32, whatever autocast multiplies in."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the RMS norm over the last dimension of (..., n)."""
        return super().forward(x.float())


class EagleAttention(nn.Module):
    """Grouped-query attention whose q, k and v read 2 D."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        source = 2 * config.hidden_size
        self.q_proj = nn.Linear(source, heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(source, groups * config.head_dim, bias=False)
        self.v_proj = nn.Linear(source, groups * config.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * config.head_dim, config.hidden_size, bias=False)
        if config.qk_norm:
            self.q_norm = EagleNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = EagleNorm(config.head_dim, config.rms_norm_eps)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Keys]:
        """Compute queries (B, H, L, E) and the rows' own keys and values, of x (B, L, 2 D) at positions (B, L)."""
        shape = (*x.shape[:2], -1, self.config.head_dim)
        query, key, value = (
            part(x).view(shape).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.config.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        cos, sin = self._rotation(positions)
        return _rotate(query, cos, sin), Keys(_rotate(key, cos, sin), value)

    def mix(self, query: Tensor, sources: Sequence[Keys], scores: Sequence[Tensor]) -> Tensor:
        """Attend: (B, L, D), of the scores (B, H, L, S) against each source; `-inf` where a row does not see a key.

        Scores of shape (B, H, L) are those of a source whose row l is seen by row l alone.
        """
        flat = [score if score.ndim == 4 else score[..., None] for score in scores]
        weights = torch.cat(flat, -1).softmax(-1, dtype=torch.float32).to(query.dtype)
        parts = weights.split([score.shape[-1] for score in flat], -1)
        mixed = torch.zeros_like(query)
        for source, score, part in zip(sources, scores, parts, strict=True):
            value = self._wide(source.values)
            mixed = mixed + (part @ value if score.ndim == 4 else part * value)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score every row against every key: (B, H, L, S)."""
        return query @ self._wide(keys).mT * self.config.head_dim**-0.5

    def own_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score each row against the key in its own place: (B, H, L)."""
        return (query * self._wide(keys)).sum(-1) * self.config.head_dim**-0.5

    def _wide(self, x: Tensor) -> Tensor:
        each = self.config.num_attention_heads // self.config.num_key_value_heads
        return x.repeat_interleave(each, 1)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = torch.from_numpy(self.config.rope.inverse_frequencies()).to(positions.device)
        angles = (positions[:, None, :, None].float() * frequencies).repeat(1, 1, 1, 2)
        return angles.cos(), angles.sin()


class EagleMLP(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class EagleLayer(nn.Module):
    """The one decoder layer: `midlayer`."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = EagleNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = EagleNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = EagleNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = EagleAttention(config)
        self.mlp = EagleMLP(config)

    def inputs(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Make what q, k and v read, (B, L, 2 D), and where the residual starts."""
        normed = self.hidden_norm(g)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        return x, normed if self.config.norm_before_residual else g

    def finish(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Compute the rows' a (B, L, D), of the residual and what attention found."""
        residual = residual + mixed
        out: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class Eagle3(nn.Module):
    """The network that is trained, and drafts in torch.

    `embedding` (V, D) and `head` (V', D) are the target's rows, where the configuration takes those.
    """

    embedding: Tensor | None
    target_rows: Tensor | None

    def __init__(
        self, config: Eagle3Config, *, embedding: Tensor | None = None, head: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("target_rows", head, persistent=False)
        width = config.state_width
        if config.fc_norm:
            norms = [EagleNorm(width, config.rms_norm_eps) for _ in range(NUM_LAYERS)]
            self.fc_norm = nn.ModuleList(norms)
        if config.norm_before_fc:
            self.input_norm = EagleNorm(NUM_LAYERS * width, config.rms_norm_eps)
        self.fc = nn.Linear(NUM_LAYERS * width, config.hidden_size, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = EagleNorm(config.hidden_size, config.rms_norm_eps)
        if not config.target_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if not config.target_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def fuse(self, features: Tensor) -> Tensor:
        """Compute the rows' g (..., D), of the target's states (..., 3 D), low, mid and high side by side."""
        if self.config.fc_norm:
            parts = features.unflatten(-1, (NUM_LAYERS, -1)).unbind(-2)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, -1)
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        out: Tensor = self.fc(features)
        return out

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed (...) int64 as (..., D)."""
        if self.config.target_embedding:
            assert self.embedding is not None, "the target's embedding"
            return self.embedding[tokens]
        rows: Tensor = self.embed_tokens(tokens)
        return rows

    def step(
        self, g: Tensor, tokens: Tensor, positions: Tensor, before: Keys | None = None
    ) -> tuple[Tensor, Tensor, Keys]:
        """Run states g (B, L, D) and tokens (B, L) int64; a row sees those `before`, the earlier ones and itself.

        Returns the g of rows drafted after them, logits (B, L, V'), and keys and values of all rows so far.
        """
        attention = self.midlayer.self_attn
        x, residual = self.midlayer.inputs(self.embed(tokens), g)
        query, added = attention.project(x, positions)
        seen = added if before is None else Keys(*map(_join, before, added))
        scores = attention.scores(query, seen.keys)
        length, stop = scores.shape[-2:]
        future = torch.ones(length, stop, dtype=torch.bool, device=x.device).triu(stop - length + 1)
        mixed = attention.mix(query, [seen], [scores.masked_fill(future, -torch.inf)])
        a = self.midlayer.finish(residual, mixed)
        return self.feedback(a), self.logits(self.output(a)), seen

    def output(self, a: Tensor) -> Tensor:
        """Return the normalised states (..., D) that the head's rows multiply."""
        out: Tensor = self.norm(a)
        return out

    def feedback(self, a: Tensor) -> Tensor:
        """Return the g of the row drafted next."""
        return self.output(a) if self.config.norm_output else a

    def logits(self, out: Tensor) -> Tensor:
        """Compute logits (..., V') of (..., D)."""
        if self.config.target_head:
            assert self.target_rows is not None, "the target's head"
            return functional.linear(out, self.target_rows)
        logits: Tensor = self.lm_head(out)
        return logits


def _join(earlier: Tensor, later: Tensor) -> Tensor:
    return torch.cat([earlier, later], 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)
