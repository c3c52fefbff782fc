"""Block drafters in folders of the Hugging Face Hub, as their makers lay them out.

- DFlash (z-lab): `dflash_config` has `mask_token_id` and `target_layer_ids`, counted by their outputs; `block_size`
  stands there or at the top level.
- DSpark by DeepSpec and LiquidAI: the same names, in `dflash_config` or at the top level. The last token's own row
  guesses, but not in those by SpecForge (`projector_type` dspark). LiquidAI's rotate neighbours
  (`rope_is_neox_style` false).
- `speculators` (vLLM): the decoder's settings in `transformer_layer_config`; `aux_hidden_state_layer_ids` are counted
  by what goes into a layer.

None trains an embedding or a head: where a folder holds copies of the target's, the target's are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.base.networks import layered
from forerun.drafters.base.networks.deferred import Deferred
from forerun.drafters.base.networks.folder import UNTRAINED, Folder, untrained_tokens
from forerun.drafters.dflash.config import CONFIDENCE, MARKOV_IN, BlockConfig
from forerun.drafters.dflash.drafting import BlockWeights
from forerun.model.config import ModelConfig, RopeConfig
from forerun.weights.stored import StoredTensor

ARCHITECTURES = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Qwen3DSparkModel",
    "Lfm2DSparkDraftModel",
)
_COPIES = (
    "embed_tokens.weight",
    "lm_head.weight",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
)
_TOKENS = (network_folder.DRAFT_IDS, "d2t", "t2d")
_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
ROTATED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", *_NORMS)


def check_kind(model: str) -> None:
    """Raise LoadError if there is no such network."""
    if model == UNTRAINED:
        return
    path = network_folder.at(model)
    config = network_folder.config_of(path)
    named = config.get("architectures") or [""]
    is_ours = config.get("speculators_model_type") in ("dflash", "dspark")
    if not is_ours and not (isinstance(named, list) and named[0] in ARCHITECTURES):
        raise LoadError(
            f"{path} holds architectures {named!r}, which is not a block drafter; allowed: {', '.join(ARCHITECTURES)}"
        )


def check_target_of(model: str, target: Target) -> None:
    """Raise LoadError for a folder of another target, by its configuration alone."""
    if model != UNTRAINED:
        folder = network_folder.read_config(network_folder.at(model), target)
        block_config(folder, target.model.config)


def read(model: str, target: Target) -> BlockWeights:
    """Read a network for a target; its tensors when they are asked for. Raises LoadError naming what is wrong."""
    if model == UNTRAINED:
        return untrained(target)
    folder = network_folder.read_config(network_folder.at(model), target)
    block_config(folder, target.model.config)  # another target's is refused before weights are read
    stored = network_folder.stored_tensors(folder.path)
    names = {name.removeprefix("model."): name for name in stored}
    listed = [names[key] for key in _TOKENS if key in names]
    ids = replace(folder, tensors={name: network_folder.as_array(stored[name]) for name in listed})
    tokens = layered.head_tokens(ids, names, target.model.config.vocab_size)
    weights = weights_of(
        folder, {ours: stored[name] for ours, name in names.items()}, tokens, target
    )
    if folder.config.get("rope_is_neox_style") is False:
        halved = _halved(Deferred.of(weights.tensors), weights.config.head_dim)
        weights = replace(weights, tensors=halved)
    return weights


def weights_of(
    folder: Folder,
    stored: Mapping[str, StoredTensor],
    tokens: Ids | None,
    target: Target,
    rope: RopeConfig | None = None,
) -> BlockWeights:
    """Put together a network of its configuration and its tensors by our names. Raises LoadError naming what is wrong.

    `rope` is None where the configuration has it.
    """
    sizes = {name: tensor.shape for name, tensor in stored.items() if name not in _COPIES}
    config = block_config(folder, target.model.config, tokens, sizes, rope)
    shapes = config.shapes()
    for name, shape in shapes.items():
        if name not in sizes:
            raise LoadError(f"{folder.path}: tensor '{name}' is missing")
        if sizes[name] != shape:
            raise LoadError(
                f"{folder.path}: tensor '{name}' is {[*sizes[name]]}, expected {[*shape]}"
            )
    for name in sorted(sizes.keys() - shapes.keys()):
        raise LoadError(f"{folder.path}: tensor '{name}' is none of such a network")
    tensors = Deferred({name: partial(_values, folder, stored[name]) for name in shapes})
    if (factor := config.rope.attention_factor) != 1:  # what yarn multiplies rotations by
        tensors = tensors.changed(
            lambda name: name.endswith(_NORMS), lambda norm: np.float32(factor) * norm
        )
    return BlockWeights(config, tensors, tokens)


def untrained(target: Target) -> BlockWeights:
    """Make a network of random weights, five layers in the shape of the target's own."""
    shape = target.model.config
    tokens = untrained_tokens(shape.vocab_size)
    last = shape.num_layers - 1
    layers = tuple(sorted({min(1, last), last // 2, last}))
    config = BlockConfig(
        vocab_size=shape.vocab_size,
        draft_vocab_size=shape.vocab_size if tokens is None else len(tokens),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rope=RopeConfig(10000.0, shape.head_dim),
        rms_norm_eps=1e-5,
        layers=layers,
        block_size=8,
        mask_token_id=0,
        sample_from_anchor=True,
        windows=(0,) * 5,
        bidirectional=(True,) * 5,
        markov_rank=64,
    )
    return BlockWeights(config, network_folder.untrained_tensors(config.shapes()), tokens)


def block_config(
    folder: Folder,
    target: ModelConfig,
    tokens: Ids | None = None,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    rope: RopeConfig | None = None,
) -> BlockConfig:
    """Read the configuration, and compare it with the target's; `sizes` of tensors, once known. Raises LoadError."""
    nested = folder.config.get("dflash_config")
    fields = {**cast(dict[str, object], nested if isinstance(nested, dict) else {})}
    fields |= {key: value for key, value in folder.config.items() if value is not None}
    block = replace(folder, config=fields)
    inner = fields.get("transformer_layer_config")
    decoder = replace(folder, config=inner) if isinstance(inner, dict) else block
    numbers = layered.sizes(decoder)
    width, head_dim = numbers["hidden_size"], numbers["head_dim"]
    state_width = block.number("target_hidden_size", default=width)
    folder.check_target(
        [
            (numbers["vocab_size"], target.vocab_size, "a vocabulary of"),
            (state_width, target.hidden_size, "states of width"),
            (width, target.hidden_size, "embeddings of width"),
        ]
    )
    layered.check_activation(decoder)
    rank = _markov_rank(block) if sizes is None or f"{MARKOV_IN}.weight" in sizes else 0
    windows = _windows(block, decoder)
    confidence = (sizes or {}).get(f"{CONFIDENCE}.weight", (1, 0))[-1]
    if confidence not in (0, width, width + rank):
        raise LoadError(f"{folder.path}: tensor '{CONFIDENCE}.weight' reads {confidence} numbers")
    mask = block.number("mask_token_id", least=0)
    if mask >= target.vocab_size:
        raise LoadError(f"{folder.path}: 'mask_token_id' is {mask}, outside the vocabulary")
    return BlockConfig(
        **numbers,
        draft_vocab_size=target.vocab_size if tokens is None else len(tokens),
        rope=layered.rope(_whole_heads(decoder), head_dim) if rope is None else rope,
        rms_norm_eps=decoder.real("rms_norm_eps", 1e-6),
        layers=_layers(block, target.num_layers),
        block_size=block.number("block_size", least=2),
        mask_token_id=mask,
        sample_from_anchor=_samples_from_anchor(block, rank),
        windows=windows,
        bidirectional=_sees_later(block, windows),
        markov_rank=rank,
        confidence_size=confidence,
    )


def _markov_rank(block: Folder) -> int:
    """Read the width of the Markov head, 0 for none. Raises LoadError."""
    rank = block.number("markov_rank", default=0, least=0)
    kind = block.config.get("markov_head_type", "vanilla")
    if rank and kind != "vanilla":
        raise LoadError(
            f"{block.path}: a Markov head of type {kind!r} is not supported, vanilla is"
        )
    return rank


def _whole_heads(decoder: Folder) -> Folder:
    """Return the settings without a part of heads to rotate, which configurations inherit from their target's."""
    config: dict[str, Any] = {**decoder.config, "partial_rotary_factor": None}
    if isinstance(rope := config.get("rope_parameters"), dict):
        kind = rope.get("sliding_attention", rope)  # one for all layers, as their makers take it
        config["rope_parameters"] = {k: v for k, v in kind.items() if k != "partial_rotary_factor"}
    return replace(decoder, config=config)


def _layers(block: Folder, num_layers: int) -> tuple[int, ...]:
    """Read which layers' outputs are its inputs (the aux layers). Raises LoadError."""
    given, shift = block.config.get("target_layer_ids"), 0
    if given is None:
        given, shift = block.config.get("aux_hidden_state_layer_ids"), 1
    layers = [i - shift for i in given if type(i) is int] if isinstance(given, list) else []
    is_known = isinstance(given, list) and len(layers) == len(given) > 0
    if not is_known or sorted(set(layers)) != layers or layers[0] < 0 or layers[-1] >= num_layers:
        raise LoadError(
            f"{block.path}: layers of {shift} to {num_layers - 1 + shift}, ascending, must be read, got {given!r}"
        )
    return tuple(layers)


def _samples_from_anchor(block: Folder, rank: int) -> bool:
    if block.config.get("sample_from_anchor") is not None:
        return block.flag("sample_from_anchor")
    if block.config.get("speculators_model_type") is not None:
        return block.config["speculators_model_type"] == "dspark"
    return rank > 0 and block.config.get("projector_type") != "dspark"


def _windows(block: Folder, decoder: Folder) -> tuple[int, ...]:
    """Read how far each layer sees. Raises LoadError."""
    count = decoder.number("num_hidden_layers")
    kinds = decoder.config.get("layer_types") or ["full_attention"] * count
    if not isinstance(kinds, list) or len(kinds) != count:
        raise LoadError(f"{block.path}: 'layer_types' must be a list of {count}, got {kinds!r}")
    if unknown := {*map(str, kinds)} - {"full_attention", "sliding_attention"}:
        raise LoadError(f"{block.path}: layers of type {min(unknown)!r} are not supported")
    window = decoder.number("sliding_window") if "sliding_attention" in kinds else 0
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _sees_later(block: Folder, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell which layers see the whole block: all, but those with a window in `speculators`, unless it says so."""
    if block.flag("causal"):
        return (False,) * len(windows)
    is_ours = "speculators_model_type" in block.config
    is_causal = is_ours and not block.flag("sliding_window_non_causal")
    return tuple(not (window and is_causal) for window in windows)


def _values(folder: Folder, stored: StoredTensor) -> Floats:
    values = stored.dequantize()
    if not bool(np.isfinite(values).all()):
        raise LoadError(f"{folder.path}: tensor '{stored.name}' holds values that are not finite")
    return values


def _halved(tensors: Deferred, head_dim: int) -> Deferred:
    """Put the features of queries and keys that are rotated together, neighbours there, half a head apart."""
    order = np.arange(head_dim).reshape(-1, 2).T.reshape(-1)

    def change(values: Floats) -> Floats:
        return values.reshape(-1, head_dim, *values.shape[1:])[:, order].reshape(values.shape)

    return tensors.changed(lambda name: name.endswith(ROTATED), change)
