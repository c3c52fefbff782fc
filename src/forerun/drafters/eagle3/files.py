"""EAGLE-3 networks in files: ours, those of SafeAILab, SpecForge and vLLM, and those of `speculators`.

Ours has the fields of `Eagle3Config`, and may name the tokens of the head in `draft_ids`. Others name them by `d2t`:
row i stands for token i + d2t[i]; `t2d` is the same as a mask, which is compared. They count layers by what goes into
one: their layer 2 reads what our layer 1 gives. Without `embed_tokens` or `lm_head` the target's rows are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks import layered
from forerun.drafters.base.networks.folder import UNTRAINED, UNTRAINED_TOKENS, Folder
from forerun.drafters.eagle3.config import NUM_LAYERS, Eagle3Config
from forerun.drafters.eagle3.drafting import EagleWeights
from forerun.model.config import ModelConfig, RopeConfig

ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3DraftModel",
    "Eagle3Speculator",
)


def check_kind(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model == UNTRAINED:
        return
    path = network_folder.at(model)
    config = network_folder.config_of(path)
    named = config.get("architectures") or [""]
    kinds = [config.get("model_type"), config.get("speculators_model_type")]
    if "eagle3" not in kinds and not (isinstance(named, list) and named[0] in ARCHITECTURES):
        raise LoadError(
            f"{path} holds model_type {config.get('model_type')!r}, which is not EAGLE-3; allowed: eagle3, or "
            f"architectures {', '.join(ARCHITECTURES)}"
        )


def read(model: str, target: Target) -> EagleWeights:
    """Read a network for a target. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    check_target_of(model, target)  # before weights are read
    folder = network_folder.read(network_folder.at(model), target)
    tensors = {_our_name(name): name for name in folder.tensors}
    tokens = layered.head_tokens(folder, tensors, target.model.config.vocab_size)
    config, rope = _config(folder, tensors, target.model.config, tokens)
    weights = folder.network(
        tensors,
        config.shapes(),
        lambda name: name == "embed_tokens.weight" and config.target_embedding,
    )
    if rope.attention_factor != 1:
        _sharpened(weights, config, rope.attention_factor)
    return EagleWeights(config, weights, tokens, network_folder.temperatures(folder))


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a folder of another target, by its configuration alone."""
    if model == UNTRAINED:
        return
    folder = network_folder.read_config(network_folder.at(model), target)
    shape = target.model.config
    layer = folder.config.get("transformer_layer_config")
    inner = replace(folder, config=layer) if isinstance(layer, dict) else folder
    hidden_size = inner.number("hidden_size")
    width = folder.number("target_hidden_size", default=0, least=0) or hidden_size
    folder.check_target(
        [
            (inner.number("vocab_size"), shape.vocab_size, "a vocabulary of"),
            (width, shape.hidden_size, "states of width"),
        ]
    )
    _layers(folder, shape.num_layers)


def untrained(target: Target) -> EagleWeights:
    """Make a network of random weights, in the shape of the target's own layers."""
    shape = target.model.config
    num_tokens = min(shape.vocab_size, UNTRAINED_TOKENS)
    last = shape.num_layers - 1
    config = Eagle3Config(
        vocab_size=shape.vocab_size,
        draft_vocab_size=num_tokens,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        layers=(min(1, last), last // 2, last) if last else (0, 0, 0),
        target_head=True,
    )
    tensors = network_folder.untrained_tensors(config.shapes())
    return EagleWeights(config, tensors, np.arange(num_tokens))


def _our_name(name: str) -> str:
    """Rename a tensor: `speculators` calls the layer `layers.0`; the norms of 3.1 also come as one list elsewhere."""
    name = name.removeprefix("model.")
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _config(
    folder: Folder, tensors: Mapping[str, str], target: ModelConfig, tokens: Ids | None
) -> tuple[Eagle3Config, RopeConfig]:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    layer = folder.config.get("transformer_layer_config")
    inner = replace(
        folder, config=cast(dict[str, object], layer) if isinstance(layer, dict) else folder.config
    )
    numbers = layered.sizes(inner)
    rope = layered.rope(inner, numbers["head_dim"])
    layered.check_activation(inner)
    config = Eagle3Config(
        **numbers,
        draft_vocab_size=target.vocab_size if tokens is None else len(tokens),
        rope_theta=rope.theta,
        rope_factors=rope.factors,
        rms_norm_eps=inner.real("rms_norm_eps", 1e-5),
        layers=_layers(folder, target.num_layers),
        target_hidden_size=folder.number("target_hidden_size", default=0, least=0)
        or target.hidden_size,
        fc_norm="fc_norm.0.weight" in tensors or folder.flag("fc_norm"),
        norm_before_fc=folder.flag("norm_before_fc"),
        norm_output=folder.flag("norm_output"),
        qk_norm="midlayer.self_attn.q_norm.weight" in tensors,
        norm_before_residual=folder.flag("norm_before_residual"),
        target_embedding=_takes_targets(folder, "target_embedding", "embed_tokens.weight", tensors),
        target_head=_takes_targets(folder, "target_head", "lm_head.weight", tensors),
    )
    check_target(folder, config, config.vocab_size, target)
    return config, rope


def check_target(
    folder: Folder, config: Eagle3Config, vocab_size: int, target: ModelConfig
) -> None:
    """Raise LoadError for a network of another target; `vocab_size` is that of the network's own."""
    compared = [(vocab_size, target.vocab_size, "a vocabulary of")]
    compared += [(config.state_width, target.hidden_size, "states of width")]
    if config.target_embedding or config.target_head:
        compared += [(config.hidden_size, target.hidden_size, "embeddings of width")]
    folder.check_target(compared)


def _takes_targets(folder: Folder, flag: str, name: str, tensors: Mapping[str, str]) -> bool:
    return folder.flag(flag) or name not in tensors


def _sharpened(tensors: dict[str, Floats], config: Eagle3Config, factor: float) -> None:
    """Multiply queries and keys, where they are made or normed, by what yarn multiplies their rotations by."""
    kind = "norm" if config.qk_norm else "proj"
    for name in (f"midlayer.self_attn.{part}_{kind}.weight" for part in "qk"):
        tensors[name] = np.float32(factor) * tensors[name]


def _layers(folder: Folder, num_layers: int) -> tuple[int, ...]:
    """Read which layers' outputs are its inputs (the aux layers). Raises LoadError.

    Others name a layer by what goes into it, except those of SpecForge and SGLang, which begin with 1: the first
    layer's output is never read, so that its number tells the two apart (SGLang's pull request 25454).
    """
    given = folder.config.get("layers")
    shift = 0
    if given is None:
        nested = folder.config.get("eagle_config")
        key = "eagle_aux_hidden_state_layer_ids"
        given = nested.get(key) if isinstance(nested, dict) else None
        given = given or folder.config.get(key) or [2, num_layers // 2, num_layers - 3]
        shift = 0 if isinstance(given, list) and given[0] == 1 else 1
    layers = [i - shift for i in given if type(i) is int] if isinstance(given, list) else []
    if len(layers) != NUM_LAYERS or not all(0 <= i < num_layers for i in layers):
        raise LoadError(
            f"{folder.path}: three layers of {shift} to {num_layers - 1 + shift} must be read, got {given!r}"
        )
    return tuple(layers)
