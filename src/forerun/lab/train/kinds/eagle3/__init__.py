"""Train an EAGLE-3 network, and write it as SafeAILab's (vLLM, SGLang) or as llama.cpp's GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError, LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import Array
from forerun.drafters.base.networks.trained import sizes_of
from forerun.drafters.eagle3 import NETWORK
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.lab.torch.networks.eagle3 import Eagle3, Keys
from forerun.lab.train.batches import TrainBatch
from forerun.lab.train.kinds.eagle3 import gguf
from forerun.lab.train.learners import Kind, Learner
from forerun.model.model import Model
from forerun.weights.base import Checkpoint
from forerun.weights.gguf import GgufCheckpoint

_NOT_THEIRS = ("layers", "qk_norm", "target_embedding", "target_head")


class Eagle3Learner(Learner):
    """EAGLE-3.1, begun from the target's own last layer."""

    name = "eagle3"

    def __init__(self, kind: Kind, target: Model, ids: Ids, weights: Mapping[str, Tensor]) -> None:
        """`weights` are the target's last layer and norm, fp32. Raises ConfigError."""
        shape, for_gguf = target.config, kind.for_gguf
        if kind.inner_dim > shape.intermediate_size:
            raise ConfigError(
                f"--inner must be at most {shape.intermediate_size}, as wide as the target's own, got {kind.inner_dim}"
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
        self.depth, self.source = kind.depth, target
        sizes = sizes_of(shape)
        self.shape = Eagle3Config(
            **sizes | ({"intermediate_size": kind.inner_dim} if kind.inner_dim else {}),
            draft_vocab_size=len(ids),
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
        """Name the trained depth too."""
        return super().config() | {"n_predict": self.depth}

    @torch.no_grad()
    def _begin_as_layer(self, weights: Mapping[str, Tensor], name: str) -> None:
        """The layer is the target's, which reads g alone; fc the mean of the three states."""
        width, layer = self.shape.hidden_size, self.net.midlayer
        for module, stored in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v")):
            weight = layer.self_attn.get_submodule(module).weight
            assert isinstance(weight, Tensor)
            weight[:, :width] = 0
            weight[:, width:] = weights[name + stored]
        copies = {
            layer.self_attn.o_proj: "o",
            layer.mlp.gate_proj: "gate",
            layer.mlp.up_proj: "up",
            layer.mlp.down_proj: "down",
            layer.hidden_norm: "attn_norm",
            layer.post_attention_layernorm: "mlp_norm",
        }
        inner = self._strongest(*(weights[name + each] for each in ("gate", "up", "down")))
        for linear, stored in copies.items():
            assert isinstance(linear.weight, Tensor)
            weight = weights[name + stored]
            if stored in ("gate", "up"):
                weight = weight[inner]
            elif stored == "down":
                weight = weight[:, inner]
            linear.weight.copy_(weight.view_as(linear.weight))
        self.net.fc.weight.copy_(torch.eye(width).repeat(1, 3) / 3)
        self.net.norm.weight.copy_(weights["norm"].reshape(-1))

    def _strongest(self, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Return the neurons of the target's MLP with the largest weights, ascending."""
        strength = gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)
        strongest: Tensor = strength.topk(self.shape.intermediate_size).indices.sort().values
        return strongest

    def outputs(self, batch: TrainBatch) -> list[Tensor]:
        """Text by text: rows of one do not see another's."""
        outputs: list[list[Tensor]] = [[] for _ in range(self.depth)]
        embedded = batch.embedded(self.source)
        for piece in batch.pieces:
            here = slice(piece.first, piece.stop)
            steps = self._unroll(batch.aux[here], embedded[piece.first :], piece.stop - piece.first)
            for step, out in zip(outputs, steps, strict=True):
                step.append(out[piece.start - piece.first :].float())
        return [torch.cat(step) for step in outputs]

    def _unroll(self, aux: Tensor, embedded: Tensor, length: int) -> list[Tensor]:
        """Each step's outputs (L, D). A row sees the true rows up to its own, then its own drafted ones."""
        net, attention, outputs = self.net, self.net.midlayer.self_attn, []
        g = net.fuse(aux)[None]
        positions = torch.arange(length, device=g.device)[None]
        future = torch.ones(length, length, dtype=torch.bool, device=g.device).triu(1)
        step_keys: list[Keys] = []
        for index in range(self.depth):
            tokens = embedded[1 + index : 1 + index + length][None]
            x, residual = net.midlayer.inputs(tokens, g)
            query, keys = attention.project(x, positions + index)
            step_keys.append(keys)
            scores = [attention.scores(query, step_keys[0].keys).masked_fill(future, -torch.inf)]
            scores += [attention.own_scores(query, drafted.keys) for drafted in step_keys[1:]]
            a = net.midlayer.finish(residual, attention.mix(query, step_keys, scores))
            outputs.append(net.output(a)[0])
            g = net.feedback(a)
        return outputs


LEARNER = Eagle3Learner


def exported(folder: Path, target: Target) -> tuple[dict[str, object], dict[str, Array]]:
    """Return configuration and tensors as other engines read them. Raises LoadError."""
    weights = NETWORK.read(str(folder), target)
    config, tensors = asdict(weights.config), dict[str, Array](weights.by_file_names())
    vocab_size, tokens = weights.config.vocab_size, weights.tokens
    if tokens is None:
        tokens = np.arange(vocab_size)
    if weights.config.target_head:
        tensors["lm_head.weight"] = target.model.head_weights(tokens)
    tensors["d2t"] = tokens - np.arange(len(tokens))
    tensors["t2d"] = np.isin(np.arange(vocab_size), tokens)
    inputs = [layer + 1 for layer in weights.config.layers]
    shared: Mapping[str, object] = {k: v for k, v in config.items() if k not in _NOT_THEIRS}
    return {
        **shared,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "target_hidden_size": weights.config.state_width,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": inputs},
    }, tensors


def export_gguf(folder: Path, out: Path, target: Target, of_target: Checkpoint) -> None:
    """Write an EAGLE-3 network as llama.cpp reads it.

    Raises LoadError for another network, or one that it cannot run, or if the target is not a GGUF file; and OSError.
    """
    if not isinstance(of_target, GgufCheckpoint):
        raise LoadError(f"{of_target.path} is not a GGUF file, whose tokenizer would be copied")
    NETWORK.check_kind(str(folder))
    gguf.write(out, NETWORK.read(str(folder), target), target, of_target)
