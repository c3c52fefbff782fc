"""What differs between the kinds of drafters that are trained: how they start, and what they make of a batch.

Step i of a row t has read token t+1+i and guesses token t+2+i, which the target guesses in row t+1+i. All but the first
step read the text's own tokens, as they would after right guesses, and their own states (training-time test).

N rows learned from, R rows of the batch, D hidden width, V' draft vocabulary, K steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from forerun.core.errors import ConfigError
from forerun.drafters.eagle3.network import Eagle3, Eagle3Config, Keys
from forerun.drafters.medusa.network import Medusa, MedusaConfig
from forerun.drafters.mlp_speculator.network import MLPSpeculator, MLPSpeculatorConfig
from forerun.lab.train.batches import TrainBatch
from forerun.model.model import Model


class Learner(Protocol):
    """A network of one kind with its target."""

    @property
    def source(self) -> Model:
        """The model whose embedding and head it has: the target, or a sibling that it was cut from."""
        ...

    @property
    def net(self) -> nn.Module:
        """The network."""
        ...

    @property
    def layers(self) -> tuple[int, ...]:
        """Of the target, whose outputs it reads beside the last state."""
        ...

    @property
    def piece(self) -> int | None:
        """Rows of a piece; None if it looks back at whole texts."""
        ...

    def config(self) -> dict[str, object]:
        """The kind and its configuration, as they stand in config.json."""
        ...

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """For each step, (N, D) fp32: what the target's head rows multiply."""
        ...


PIECE = 64


class RecurrentLearner:
    """The MLP speculator."""

    layers: tuple[int, ...] = ()
    piece: int | None = PIECE

    def __init__(self, target: Model, depth: int, cell: str, inner_dim: int) -> None:
        shape = target.config
        if cell not in ("mlp", "lstm"):
            raise ConfigError(f"--cell must be mlp or lstm, got {cell!r}")
        self.shape = MLPSpeculatorConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            inner_dim=inner_dim or shape.hidden_size,
            n_predict=depth,
            cell="lstm" if cell == "lstm" else "mlp",
            tie_weights=depth > 1,
            target_embedding=True,
            target_head=True,
        )
        self.source = target
        self.net = MLPSpeculator(self.shape)
        rows = target.embed(torch.arange(min(shape.vocab_size, 4096)))
        spread = float(rows.square().mean().sqrt()) or 1.0
        width = shape.hidden_size**-0.5
        for name, weight in self.net.named_parameters():
            if name == "emb_map.weight":
                nn.init.normal_(weight, std=width / (spread * self.shape.token_weight))
            elif weight.ndim == 2:
                is_input = name.endswith("0.weight")
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * (2**0.5 if is_input else 1))

    def config(self) -> dict[str, object]:
        """As in config.json."""
        return {"model_type": "mlp_speculator", **asdict(self.shape)}

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Rows are independent of each other: only the state and the tokens after it are read."""
        added = self.net.token_map(self.source.embed(batch.tokens))
        state, found = self.net.begin(batch.last[batch.at]), []
        for index in range(self.shape.n_predict):
            state, out = self.net.advance(state, added[batch.at + 1 + index], index)
            found.append(out.float())
        return found


class Eagle3Learner:
    """EAGLE-3.1, begun from the target's own last layer."""

    piece: int | None = None

    def __init__(
        self,
        target: Model,
        depth: int,
        ids: Tensor,
        weights: Mapping[str, Tensor],
        inner_dim: int = 0,
        *,
        for_gguf: bool = False,
    ) -> None:
        shape = target.config
        if inner_dim > shape.intermediate_size:
            raise ConfigError(
                f"--inner must be at most {shape.intermediate_size}, as wide as the target's own, got {inner_dim}"
            )
        if shape.family not in ("llama", "qwen2", "mistral") or shape.rope is None:
            raise ConfigError(
                f"--kind eagle3 needs a target of Llama's form, this is {shape.family}"
            )
        last = shape.num_layers - 1
        low, high = min(2, shape.num_layers // 4), last - min(2, shape.num_layers // 4)
        self.layers = (low, shape.num_layers // 2, high)
        if len({*self.layers}) < 3:
            raise ConfigError(f"--kind eagle3 reads 3 layers, the target has {shape.num_layers}")
        self.depth, self.source = depth, target
        self.shape = Eagle3Config(
            vocab_size=shape.vocab_size,
            draft_vocab_size=len(ids),
            hidden_size=shape.hidden_size,
            intermediate_size=inner_dim or shape.intermediate_size,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rope_theta=shape.rope.theta,
            rms_norm_eps=shape.norm_eps,
            layers=self.layers,
            fc_norm=not for_gguf,
            norm_before_fc=for_gguf,
            norm_output=not for_gguf,
            target_head=True,
        )
        self.net = Eagle3(self.shape)
        if weights:
            self._begin_as_layer(weights, f"layers.{last}.")

    def config(self) -> dict[str, object]:
        """As in config.json."""
        return {"model_type": "eagle3", **asdict(self.shape), "n_predict": self.depth}

    @torch.no_grad()
    def _begin_as_layer(self, weights: Mapping[str, Tensor], name: str) -> None:
        """The layer is the target's, which reads g alone; fc the mean of the three states."""
        width, layer = self.shape.hidden_size, self.net.midlayer
        for ours, theirs in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v")):
            weight = layer.self_attn.get_submodule(ours).weight
            assert isinstance(weight, Tensor)
            weight[:, :width] = 0
            weight[:, width:] = weights[name + theirs]
        copies = {
            layer.self_attn.o_proj: "o",
            layer.mlp.gate_proj: "gate",
            layer.mlp.up_proj: "up",
            layer.mlp.down_proj: "down",
            layer.hidden_norm: "attn_norm",
            layer.post_attention_layernorm: "mlp_norm",
        }
        inner = self._strongest(*(weights[name + each] for each in ("gate", "up", "down")))
        for module, theirs in copies.items():
            assert isinstance(module.weight, Tensor)
            weight = weights[name + theirs]
            if theirs in ("gate", "up"):
                weight = weight[inner]
            elif theirs == "down":
                weight = weight[:, inner]
            module.weight.copy_(weight.view_as(module.weight))
        self.net.fc.weight.copy_(torch.eye(width).repeat(1, 3) / 3)
        self.net.norm.weight.copy_(weights["norm"].reshape(-1))

    def _strongest(self, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """The neurons of the target's MLP that are kept, ascending: those that can say most."""
        strength = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        kept: Tensor = strength.topk(self.shape.intermediate_size).indices.sort().values
        return kept

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Text by text: rows of one do not see another's."""
        found: list[list[Tensor]] = [[] for _ in range(self.depth)]
        embedded = self.source.embed(batch.tokens)
        for piece in batch.pieces:
            here = slice(piece.first, piece.stop)
            steps = self._unroll(
                batch.taps[here], embedded[piece.first :], piece.stop - piece.first
            )
            for step, out in zip(found, steps, strict=True):
                step.append(out[piece.start - piece.first :].float())
        return [torch.cat(step) for step in found]

    def _unroll(self, taps: Tensor, embedded: Tensor, length: int) -> list[Tensor]:
        """Each step's outputs (L, D). A row sees the true rows up to its own, then its own drafted ones."""
        net, attention, found = self.net, self.net.midlayer.self_attn, []
        g = net.fuse(taps)[None]
        positions = torch.arange(length)[None]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        own: list[Keys] = []
        for index in range(self.depth):
            tokens = embedded[1 + index : 1 + index + length][None]
            x, residual = net.midlayer.inputs(tokens, g)
            query, keys = attention.project(x, positions + index)
            own.append(keys)
            scores = [attention.scores(query, own[0].keys).masked_fill(future, -torch.inf)]
            scores += [attention.own_scores(query, drafted.keys) for drafted in own[1:]]
            a = net.midlayer.finish(residual, attention.mix(query, own, scores))
            found.append(net.output(a)[0])
            g = net.feedback(a)
        return found


class MedusaLearner:
    """Heads on the target's rows; those of published files are them multiplied out."""

    layers: tuple[int, ...] = ()
    piece: int | None = PIECE

    def __init__(self, target: Model, depth: int, ids: Tensor, num_layers: int) -> None:
        self.depth, self.source = depth, target
        self.shape = MedusaConfig(
            target.config.vocab_size,
            target.config.hidden_size,
            depth,
            num_layers,
            draft_vocab_size=len(ids),
            target_head=True,
        )
        self.net = Medusa(self.shape)

    def config(self) -> dict[str, object]:
        """As in config.json."""
        return {"model_type": "medusa", **asdict(self.shape)}

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Of the last state alone."""
        hidden = batch.last[batch.at]
        return [self.net.output(hidden, index).float() for index in range(self.depth)]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is to be trained."""

    name: str
    depth: int = 3
    cell: str = "lstm"
    inner_dim: int = 0
    """Of mlp_speculator, and of the MLP of eagle3; 0 is the target's."""
    num_layers: int = 1
    """Of each head of medusa."""
    for_gguf: bool = False
    """eagle3 with the norms that llama.cpp has: one before `fc`, and none of what is fed back."""


KINDS = ("mlp_speculator", "eagle3", "medusa")


def new_learner(kind: Kind, target: Model, ids: Tensor, weights: Mapping[str, Tensor]) -> Learner:
    """An untrained drafter; `weights` are the target's as fp32, those of its last layer and norm, for eagle3.

    Raises ConfigError.
    """
    if kind.name == "mlp_speculator":
        return RecurrentLearner(target, kind.depth, kind.cell, kind.inner_dim)
    if kind.name == "eagle3":
        return Eagle3Learner(
            target, kind.depth, ids, weights, kind.inner_dim, for_gguf=kind.for_gguf
        )
    if kind.name == "medusa":
        return MedusaLearner(target, kind.depth, ids, kind.num_layers)
    raise ConfigError(f"--kind must be one of {', '.join(KINDS)}, got {kind.name!r}")
