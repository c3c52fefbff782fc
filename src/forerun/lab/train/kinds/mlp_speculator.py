"""Train an MLP speculator, and write it as IBM's (fms-extras, vLLM) or, with an LSTM's cell, Snowflake's `sum_lstm`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import Array, open_network
from forerun.drafters.mlp_speculator import files
from forerun.drafters.mlp_speculator.config import GATE_TABLES, MLPSpeculatorConfig
from forerun.lab.torch.networks.mlp_speculator import MLPSpeculator
from forerun.lab.train.batches import TrainBatch
from forerun.lab.train.learners import PIECE, Kind, Learner
from forerun.model.model import Model, projected_head

_TOP_K = (4, 3, 2)
"""Tokens of each head that IBM's engine tries; the last for all later ones."""


class RecurrentLearner(Learner):
    """The MLP speculator."""

    name, piece = "mlp_speculator", PIECE

    def __init__(self, kind: Kind, target: Model, ids: Ids, weights: Mapping[str, Tensor]) -> None:
        shape, self.depth = target.config, kind.depth
        if kind.cell not in ("mlp", "lstm"):
            raise ConfigError(f"--cell must be mlp or lstm, got {kind.cell!r}")
        if kind.cell == "lstm" and not kind.tied:
            raise ConfigError(
                "--untied is for --cell mlp: an lstm has the same weights in every step"
            )
        self.shape = MLPSpeculatorConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            inner_dim=kind.inner_dim or shape.hidden_size,
            n_predict=kind.depth,
            cell="lstm" if kind.cell == "lstm" else "mlp",
            tie_weights=kind.depth > 1 and kind.tied,
            target_embedding=kind.zero_tokens or not kind.own_embedding,
            target_head=not kind.own_head,
        )
        self.source = target
        self.net = MLPSpeculator(self.shape, num_tokens=len(ids))
        rows = torch.from_numpy(target.embed(np.arange(min(shape.vocab_size, 4096))))
        spread = float(rows.square().mean().sqrt()) or 1.0
        width = shape.hidden_size**-0.5
        for name, weight in self.net.named_parameters():
            if name == "emb_map.weight":
                nn.init.normal_(weight, std=width / (spread * self.shape.token_weight))
            elif name.startswith("emb.") or "_emb." in name:
                nn.init.normal_(weight, std=1 / self.shape.token_weight)
            elif weight.ndim == 2:
                is_input = name.startswith("proj") and name.endswith("0.weight")
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (2**0.5 if is_input else 1))

        if kind.zero_tokens:
            nn.init.zeros_(self.net.emb_map.weight.requires_grad_(False))

    def head_of(self, step: int, shared: Tensor) -> Tensor:
        """Return the step's own rows, or the target's."""
        if self.shape.target_head:
            return shared
        rows: Tensor = self.net.head[0 if self.shape.tie_weights else step].weight
        return rows.to(shared.dtype)

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Compute the outputs; rows do not depend on each other: only the state and the tokens after it are read."""
        has_map = self.shape.target_embedding
        mapped = self.net.token_map(batch.embedded(self.source)) if has_map else None
        state, outputs = self.net.begin(batch.last[batch.at]), []
        for index in range(self.shape.n_predict):
            rows = batch.at + 1 + index
            added = self.net.embed(batch.tokens[rows], index) if mapped is None else mapped[rows]
            state, out = self.net.advance(state, added, index)
            outputs.append(out.float())
        return outputs


LEARNER = RecurrentLearner
fitting = files.fitting


def exported(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Array]]:
    """Return configuration and tensors as other engines read them. Raises LoadError."""
    read = files.stored(open_network(str(folder)), target)
    config, weights, tokens = read.config, dict[str, Array](read.by_file_names()), read.tokens
    is_lstm = config.cell == "lstm"
    if (map := weights.pop("emb_map.weight", None)) is not None:
        table = target.model.embed(np.arange(config.vocab_size)) @ map.T
        parts = np.split(table, table.shape[1] // config.inner_dim, 1)
        if is_lstm:
            tables = [f"{n}.0" for n in GATE_TABLES[: len(parts)]]
        else:  # untied, each step has the same one
            tables = [f"emb.{i}" for i in range(1 if config.tie_weights else config.n_predict)]
            parts *= len(tables)
        weights |= {f"{n}.weight": t for n, t in zip(tables, parts, strict=True)}
    for head, head_map in config.head_maps.items():
        rows = weights.pop(config.file_name(head_map))
        weights[config.file_name(head)] = projected_head(target.model, None, rows)
    if not config.target_head and tokens is not None:
        for name in [name for name in weights if name.startswith("head.")]:
            rows = np.zeros((config.vocab_size, config.inner_dim), np.float32)
            rows[tokens], weights[name] = weights[name], rows
    prefix = "" if is_lstm else "speculator."
    return _theirs(config), {prefix + name: array for name, array in weights.items()}


def _theirs(ours: MLPSpeculatorConfig) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": "mlp_speculator",
        "vocab_size": ours.vocab_size,
        "inner_dim": ours.inner_dim,
        "n_predict": ours.n_predict,
        "tie_weights": ours.tie_weights,
        "scale_input": ours.scale_input,
    }
    if ours.cell == "lstm":
        return config | {
            "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"],
            "method": "sum_lstm",
            "input_hidden_dim": ours.hidden_size,
            "emb_dim": ours.inner_dim,
            "proj_dim": ours.inner_dim,
            "num_lookahead_tokens": ours.n_predict,
            "tie_lstm_embs": ours.tie_lstm_embs,
        }
    top_k = [_TOP_K[min(i, len(_TOP_K) - 1)] for i in range(ours.n_predict)]
    return config | {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": ours.hidden_size,
        "n_candidates": 5,
        "top_k_tokens_per_head": top_k,
    }
