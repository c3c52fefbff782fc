"""Tiny models with a head inside: transformers' own module as the oracle, files as others write them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import safetensors.torch
import torch
import transformers
from torch import Tensor
from transformers.modeling_layers import MtpLayer

from forerun.drafters.base.contract import Target
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.model import gguf_files
from tests.model.gguf_converter import as_gguf
from tests.model.tiny import checkpoint_of, hf_model, randomize

PARTS = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "post_norm": "norm",
}


class Oracle:
    """A Hugging Face model and a random head of its kind."""

    def __init__(self, family: str, **changes: Any) -> None:
        self.model = hf_model(family, **changes)
        config = copy.deepcopy(self.model.config)
        config.layer_types, config.num_hidden_layers = ["full_attention"], 1
        base = self.model.get_decoder()
        norm_class = type(base.norm)
        torch.manual_seed(7)
        self.head = MtpLayer(config, type(base.layers[-1]), norm_class, 0).eval().float()
        self.head.config = self.model.config
        randomize(self.head)  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """Return the head's tensors as Qwen's folders have them."""
        tensors = {}
        for name, tensor in self.head.state_dict().items():
            part, _, rest = name.partition(".")
            inner = f"layers.0.{rest}" if part == "mtp_block" else f"{PARTS[part]}.{rest}"
            tensors[f"mtp.{inner}"] = tensor.detach().clone()
        return tensors

    def states(self, tokens: Sequence[int]) -> Tensor:
        """Return the states (T, D) that the model's head reads."""
        with torch.inference_mode():
            states: Tensor = self.model.get_decoder()(torch.tensor([[*tokens]])).last_hidden_state[
                0
            ]
        return states

    def step(self, tokens: Sequence[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return n (R, D) and logits (R, V) of rows: each reads a token and the state before it."""
        base = self.model.get_decoder()
        embedded = base.embed_tokens(torch.tensor([[*tokens]]))
        positions = torch.arange(len(tokens))[None]
        mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
        rotary = base.rotary_emb(embedded, positions)
        states = self.head(embedded, hidden[None], rotary, mask, positions, None)[0]
        return states, self.model.lm_head(states)

    def folder(self, path: Path, more: dict[str, Tensor] | None = None) -> Path:
        """Write a folder with the head inside; `more` tensors replace those of the name."""
        checkpoint = checkpoint_of(self.model)
        tensors = {**checkpoint.tensors, **(self.tensors() if more is None else more)}
        path.mkdir(parents=True, exist_ok=True)
        stored = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
        safetensors.torch.save_file(stored, path / "model.safetensors", {"format": "pt"})
        config = {**checkpoint.config, "architectures": [type(self.model).__name__]}
        (path / "config.json").write_text(json.dumps(config))
        return path

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's tensors, and the head's as those of a layer behind the last."""
        layer = f"model.layers.{self.config.num_hidden_layers}."
        weights = dict(self.model.state_dict())
        for name, tensor in self.head.state_dict().items():
            part, _, rest = name.partition(".")
            inner = {"mtp_block": "", "post_norm": "nextn.shared_head_norm."}
            weights[layer + inner.get(part, f"nextn.{part}.") + rest] = tensor
        return weights

    @property
    def config(self) -> transformers.PretrainedConfig:
        """The model's."""
        return self.model.config

    def gguf(self, path: Path, architecture: str, extra: dict[str, Any] | None = None) -> Path:
        """Write a GGUF file with the head as its last block."""
        counts = {"block_count": self.config.num_hidden_layers + 1, "nextn_predict_layers": 1}
        whole = as_gguf(self, architecture, {**(extra or {}), **counts})  # type: ignore[arg-type]
        writer = gguf.GGUFWriter(path, architecture)
        gguf_files.add(writer, whole)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def target_of(path: Path, **options: Any) -> Target:
    """Load a file as a target that knows where it came from."""
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint)
    names = frozenset(checkpoint.names())
    return Target(model, None, 4, 128, model.new_cache(4, 128), path=path, names=names, **options)
