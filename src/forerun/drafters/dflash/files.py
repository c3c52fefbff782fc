"""Block drafters in files, as their makers lay them out.

- DFlash (z-lab): `dflash_config` has `mask_token_id` and `target_layer_ids`, counted by their outputs; `block_size`
  stands there or at the top level.
- DSpark by DeepSpec and LiquidAI: the same names, in `dflash_config` or at the top level. The last token's own row
  guesses, but not in those by SpecForge (`projector_type` dspark). LiquidAI's rotate neighbours
  (`rope_is_neox_style` false).
- `speculators` (vLLM): the decoder's settings in `transformer_layer_config`; `aux_hidden_state_layer_ids` are counted
  by what goes into a layer.
- GGUF files of llama.cpp (src/models/dflash.cpp): `target_layers` are counted by what goes into a layer, the mask is
  the tokenizer's, and `d2t` are the tokens of the head themselves.

None trains an embedding or a head: where a file holds copies of the target's, the target's are taken.
"""

from __future__ import annotations

import numpy as np

from forerun.core.arrays import Ids
from forerun.core.errors import LoadError, short_repr
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import trained
from forerun.drafters.base.networks.trained import WIDEST, TrainedNetwork
from forerun.drafters.dflash.config import BlockConfig
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig, RopeConfig
from forerun.weights.base import Checkpoint
from forerun.weights.stored import StoredTensor, stored_floats

KINDS = (
    "DFlashDraftModel",
    "DFlashSpeculator",
    "DSparkDraftModel",
    "DSparkSpeculator",
    "Qwen3DSparkModel",
    "Lfm2DSparkDraftModel",
    "dflash",
    "dspark",
)
_COPIES = {
    "embed_tokens.weight",
    "lm_head.weight",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
    "token_embd.weight",
    "output.weight",
    "rope_freqs.weight",
}
ROTATED = ("q", "k", "q_norm", "k_norm")
_USUAL_BLOCK = 16
_MOST = 1 << 16

BlockWeights = TrainedNetwork[BlockConfig]


def check_sizes_of(file: Checkpoint, target: Target) -> None:
    """Raise LoadError for a network of another target."""
    _config(file, target.model.config, _names(file), None)


def read(file: Checkpoint, target: Target) -> BlockWeights:
    """Read a network for a target. Raises LoadError naming what is wrong."""
    names, shape = _names(file), target.model.config
    tokens = trained.head_tokens(file, names, shape.vocab_size)
    config = _config(file, shape, names, tokens)
    shapes = config.shapes()
    shapes.pop("confidence", None)
    own = {name: full for name, full in names.items() if not _is_confidence(name)}
    tensors = trained.take(
        file, own, shapes, lambda name: config.file_name(name, file.kind), _COPIES.__contains__
    )
    if config.has_confidence:
        tensors["confidence"] = _confidence(file, names, config)
    if (factor := np.float32(config.rope.attention_factor)) != 1:  # what yarn multiplies by
        for name in tensors:
            if name.endswith(("q_norm", "k_norm")):
                tensors[name] = tensors[name].changed(lambda norm: factor * norm)
    if file.config.get("rope_is_neox_style") is False:
        for name, stored in tensors.items():
            if name.rpartition(".")[2] in ROTATED:
                rows = trained.neighbours_apart(stored.shape[0], config.head_dim)
                tensors[name] = stored.rows(rows)
    return BlockWeights(config, tensors, tokens)


def untrained(target: Target) -> BlockWeights:
    """Make a network of random weights, five layers in the shape of the target's own."""
    shape = target.model.config
    tokens = trained.untrained_tokens(shape.vocab_size)
    last = shape.num_layers - 1
    layers = tuple(sorted({min(1, last), last // 2, last}))
    config = BlockConfig(
        **trained.sizes_of(shape),
        draft_vocab_size=shape.vocab_size if tokens is None else len(tokens),
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
    return BlockWeights(config, trained.untrained_tensors(config.shapes()), tokens)


def _names(file: Checkpoint) -> dict[str, str]:
    return {name.removeprefix("model."): name for name in file.names()}


def _config(
    file: Checkpoint, target: ModelConfig, names: dict[str, str], tokens: Ids | None
) -> BlockConfig:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    settings = _settings(file)
    sizes = trained.decoder_sizes(settings, target.vocab_size)
    width = sizes["hidden_size"]
    state_width = settings.integer("target_hidden_size", width, high=WIDEST)
    trained.check_sizes(
        [
            (sizes["vocab_size"], target.vocab_size, "a vocabulary of"),
            (state_width, target.hidden_size, "states of width"),
            (width, target.hidden_size, "embeddings of width"),
        ]
    )
    rank, windows = _markov_rank(settings, names), _windows(settings)
    usual_block = _USUAL_BLOCK if settings.is_gguf else None
    return BlockConfig(
        **sizes,
        draft_vocab_size=target.vocab_size if tokens is None else len(tokens),
        rope=trained.rope(settings, sizes["head_dim"]),
        rms_norm_eps=trained.norm_eps(settings, 1e-6),
        layers=_layers(settings, target.num_layers),
        block_size=settings.integer("block_size", usual_block, low=2, high=_MOST),
        mask_token_id=settings.integer("mask_token_id", low=0, high=target.vocab_size - 1),
        sample_from_anchor=_samples_from_anchor(settings, rank),
        windows=windows,
        bidirectional=_sees_later(settings, windows),
        markov_rank=rank,
        has_confidence=any(map(_is_confidence, names)),
    )


def _settings(file: Checkpoint) -> Settings:
    """Return all settings side by side. Those of a part of each head come from the target: whole heads are rotated."""
    settings = trained.flattened(file, "dflash_config", "transformer_layer_config")
    config = dict(file.config)
    if settings.is_gguf:
        mask = f"{settings.prefix}mask_token_id"
        config[mask] = config.get(mask, config.get("tokenizer.ggml.mask_token_id"))
    else:
        config.pop("partial_rotary_factor", None)
        if isinstance(rope := config.get("rope_parameters"), dict):
            kind = rope.get(
                "sliding_attention", rope
            )  # one for all layers, as their makers take it
            if isinstance(kind, dict):
                kind = {k: v for k, v in kind.items() if k != "partial_rotary_factor"}
            config["rope_parameters"] = kind
    file.config = config
    return settings


def _markov_rank(settings: Settings, names: dict[str, str]) -> int:
    """Read the width of the Markov head, 0 for none. Raises LoadError."""
    if settings.is_gguf:
        table = names.get("markov_w1.weight")
        return 0 if table is None else settings.checkpoint.tensor(table).shape[-1]
    rank = settings.integer("markov_rank", 0, low=0, high=_MOST)
    kind = settings.get("markov_head_type", "vanilla")
    if rank and kind != "vanilla":
        raise LoadError(f"a Markov head of type {short_repr(kind)} is not supported, vanilla is")
    return rank if "markov_head.markov_w1.weight" in names else 0


def _layers(settings: Settings, num_layers: int) -> tuple[int, ...]:
    """Read which layers' outputs are its inputs (the aux layers). Raises LoadError."""
    key = trained.key_of(
        settings, "target_layer_ids", "aux_hidden_state_layer_ids", "target_layers"
    )
    given, shift = settings.get(key), int(key != "target_layer_ids")
    layers = trained.layer_ids(given, shift)
    if not layers or sorted(set(layers)) != layers or layers[0] < 0 or layers[-1] >= num_layers:
        raise LoadError(
            f"layers of {shift} to {num_layers - 1 + shift}, ascending, must be read, got {short_repr(given)}"
        )
    return tuple(layers)


def _samples_from_anchor(settings: Settings, rank: int) -> bool:
    if settings.get("sample_from_anchor") is not None:
        return settings.flag("sample_from_anchor", False)
    if (kind := settings.get("speculators_model_type")) is not None:
        return bool(kind == "dspark")
    return rank > 0 and settings.get("projector_type") != "dspark"


def _windows(settings: Settings) -> tuple[int, ...]:
    """Read how far each layer sees, 0: all. Raises LoadError."""
    key = "attention.sliding_window_pattern" if settings.is_gguf else "layer_types"
    num_layers = settings.size("num_layers")
    if settings.get(key) is None:
        return (0,) * num_layers
    return tuple(window or 0 for window in settings.windows())


def _sees_later(settings: Settings, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell which layers see the whole block: all, but those with a window in `speculators`, unless it says so."""
    if settings.flag("attention.causal" if settings.is_gguf else "causal", False):
        return (False,) * len(windows)
    is_ours = settings.get("speculators_model_type") is not None
    is_causal = is_ours and not settings.flag("sliding_window_non_causal", False)
    return tuple(not (window and is_causal) for window in windows)


def _is_confidence(name: str) -> bool:
    return name.startswith(("confidence_head.proj.", "conf_proj."))


def _confidence(file: Checkpoint, names: dict[str, str], config: BlockConfig) -> StoredTensor:
    """Join the confidence head's row, of D or D + r numbers, and its bias (D + r + 1,). Raises LoadError."""
    weight_name = config.file_name("confidence", file.kind)
    found = [weight_name, weight_name.replace(".weight", ".bias")]
    if missing := [name for name in found if name not in names]:
        raise LoadError(f"tensor '{missing[0]}' is missing")
    row, bias = (file.tensor(names[name]).dequantize().reshape(-1) for name in found)
    width, rank = config.hidden_size, config.markov_rank
    if len(row) not in (width, width + rank) or len(bias) != 1:
        raise LoadError(
            f"tensors '{weight_name}' and its bias have {len(row)} and {len(bias)} numbers, "
            f"expected {width} or {width + rank}, and 1"
        )
    unread = np.zeros(width + rank - len(row), np.float32)
    return stored_floats(weight_name, np.concatenate([row, unread, bias]))
