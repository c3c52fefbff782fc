"""Random recurrent networks and the tiny targets that they draft for."""

from __future__ import annotations

import torch

from forerun.drafters.mlp_speculator.drafting import RecurrentWeights
from forerun.drafters.mlp_speculator.network import MLPSpeculator, MLPSpeculatorConfig
from forerun.model.backends.native import load as load_native
from tests.native.models import GATED, VOCAB, random_weights

WIDTH = GATED.hidden_size
TOKENS = torch.arange(0, VOCAB, 3)
KINDS = {
    "lstm": {"cell": "lstm", "tie_lstm_embs": True},
    "lstm, a map for each gate": {"cell": "lstm"},
    "lstm, its own embedding": {"cell": "lstm", "target_embedding": False},
    "mlp": {},
    "mlp, scaled, all tokens, wide": {"scale_input": True, "tokens": None, "inner_dim": 96, "target_head": False},
    "mlp, each depth its own": {"tie_weights": False, "target_embedding": False, "target_head": False},
}  # fmt: skip


def weights_of(*, tokens=TOKENS, **options) -> RecurrentWeights:
    """A random network of three depths; with `target_head` the target's rows are its head."""
    chosen = {
        "inner_dim": WIDTH,
        "scale_input": False,
        "target_embedding": True,
        "target_head": True,
    }
    config = MLPSpeculatorConfig(VOCAB, WIDTH, n_predict=3, **{**chosen, **options})
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, parameter in MLPSpeculator(config).named_parameters():
        if name.startswith("head_map"):
            continue
        rows = len(tokens) if name.startswith("head") and tokens is not None else len(parameter)
        values = torch.randn(rows, *parameter.shape[1:], generator=generator)
        is_norm, scale = parameter.dim() == 1, 2 if name.startswith("head") else 8
        tensors[name] = values / 4 + name.endswith("weight") if is_norm else values / scale
    return RecurrentWeights(config, tensors, tokens, (1.0, 0.8))


def target(dtype="f32", **options):
    return load_native(GATED, random_weights(GATED, dtype), **{"num_threads": 1, **options})


def hidden(num_rows):
    return torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(num_rows))
