"""Heads with a state that rows read and change, in chunks of rows: the reference of the native kernels.

The gated delta rule (arXiv 2412.06464) keeps a matrix S (K, V) for each head. A row with key k, value v, query q,
log-decay g <= 0 and rate beta makes of it

    S <- e^g S;   d = beta (v - S^T k);   S <- S + k d^T;   and reads  S^T q.

Mamba-2 (arXiv 2405.21060) is the same with d = v. Here a row's result is defined by S at the beginning of its chunk of
CHUNK positions, S0, and by what the rows of the chunk on its path have left, their k, d and b, the sum of their g:

    d_t = beta_t (v_t - e^b_t S0^T k_t - sum_{s < t} e^(b_t - b_s) (k_s . k_t) d_s)
    S_t^T q_t = e^b_t S0^T q_t + sum_{s <= t} e^(b_t - b_s) (k_s . q_t) d_s

so rows are kept, dropped and moved like keys and values, and S changes at the end of a chunk only. Chunks lie at
absolute positions: a row has the same bits in a prompt, in plain decoding and in a draft's tree.

n rows of a chunk, padded to CHUNK, H heads, K key dimension, V value dimension, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from forerun.lab.torch.reference import silu

CHUNK = 64
"""Positions of a chunk: those of a block of the cache."""


def convolve(window: Tensor, taps: Tensor, bias: Tensor | None, *, activated: bool) -> Tensor:
    """Return the causal convolution (C,) of a row: `window` (T, C) ends with it, `taps` are (C, T)."""
    mixed = (window * taps.T).sum(0)
    mixed = mixed if bias is None else mixed + bias
    return silu(mixed) if activated else mixed


def unit(heads: Tensor) -> Tensor:
    """Divide heads (..., K) by their lengths."""
    return heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x)."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20))))


def read(
    state: Tensor, asked: Tensor, decay: Tensor, keys: Tensor, changes: Tensor, decays: Tensor
) -> Tensor:
    """Return what heads (H, K) read, (H, V), after the rows of a chunk have changed the state (H, K, V).

    The rows' keys (n, H, K), changes d (n, H, V) and sums of log-decays (n, H); `decay` (H,) is the sum up to the
    row that asks.
    """
    missing = CHUNK - len(keys)
    keys, changes = (functional.pad(part, (0, 0, 0, 0, 0, missing)) for part in (keys, changes))
    decays = functional.pad(decays, (0, 0, 0, missing))
    weights = torch.einsum("shk,hk->sh", keys, asked) * torch.exp((decay - decays).clamp(max=0))
    earlier = torch.einsum("hkv,hk->hv", state, asked) * torch.exp(decay)[:, None]
    return earlier + torch.einsum("sh,shv->hv", weights, changes)


def advanced(state: Tensor, keys: Tensor, changes: Tensor, decays: Tensor) -> Tensor:
    """Return the state (H, K, V) at the end of a chunk, whose CHUNK rows have these keys, changes and decays."""
    weights = torch.exp(decays[-1] - decays)[..., None]  # (CHUNK, H, 1)
    decayed = state * torch.exp(decays[-1])[:, None, None]
    return decayed + torch.einsum("shk,shv->hkv", keys * weights, changes)
