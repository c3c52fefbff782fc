"""EAGLE-3 networks in files: ours, those of SafeAILab, SpecForge and vLLM, of `speculators`, and of llama.cpp.

Ours has the fields of `Eagle3Config`, and may name the tokens of the head in `draft_ids`. Others name them by `d2t`:
row i stands for token i + d2t[i]; `t2d` is the same as a mask, which is compared. They count layers by what goes into
one: their layer 2 reads what our layer 1 gives. Without `embed_tokens` or `lm_head` the target's rows are taken.

A GGUF file (llama.cpp, src/models/eagle3.cpp and conversion/llama.py) has rows of q and k in llama.cpp's order of
pairs, and `d2t` are the tokens of the head themselves; the tokenizer is a copy of the target's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.core.arrays import Ids
from forerun.core.errors import LoadError, short_repr
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import trained
from forerun.drafters.base.networks.trained import UNTRAINED_TOKENS, WIDEST, TrainedNetwork
from forerun.drafters.eagle3.config import NAMES, NUM_LAYERS, Eagle3Config
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig, RopeConfig
from forerun.weights.base import Checkpoint

KINDS = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3DraftModel",
    "Eagle3Speculator",
    "eagle3",
)
_IGNORED = ("embed_tokens.weight", "rope_freqs.weight")

EagleWeights = TrainedNetwork[Eagle3Config]


def check_sizes_of(file: Checkpoint, target: Target) -> None:
    """Raise LoadError for a network of another target."""
    _config(file, _names(file), target.model.config, None)


def read(file: Checkpoint, target: Target) -> EagleWeights:
    """Read a network for a target. Raises LoadError naming what is wrong."""
    names = _names(file)
    tokens = trained.head_tokens(file, names, target.model.config.vocab_size)
    config, rope = _config(file, names, target.model.config, tokens)
    tensors = trained.take(
        file,
        names,
        config.shapes(),
        lambda name: config.file_name(name, file.kind),
        _IGNORED.__contains__,
    )
    rotated = ("q_norm", "k_norm") if config.qk_norm else ("q", "k")
    if (factor := np.float32(rope.attention_factor)) != 1:  # what yarn multiplies rotations by
        tensors |= {name: tensors[name].changed(lambda x: factor * x) for name in rotated}
    if file.kind == "gguf":
        for name in "qk":
            rows = trained.neighbours_apart(tensors[name].shape[0], config.head_dim)
            tensors[name] = tensors[name].rows(rows)
    return EagleWeights(config, tensors, tokens, trained.temperatures(file))


def untrained(target: Target) -> EagleWeights:
    """Make a network of random weights, in the shape of the target's own layers."""
    shape = target.model.config
    num_tokens = min(shape.vocab_size, UNTRAINED_TOKENS)
    last = shape.num_layers - 1
    config = Eagle3Config(
        **trained.sizes_of(shape),
        draft_vocab_size=num_tokens,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        layers=(min(1, last), last // 2, last) if last else (0, 0, 0),
        target_head=True,
    )
    tensors = trained.untrained_tensors(config.shapes())
    return EagleWeights(config, tensors, np.arange(num_tokens))


def _names(file: Checkpoint) -> dict[str, str]:
    """Return the tensors by the names of SafeAILab; `speculators` calls the layer `layers.0`."""
    short = {name.removeprefix("model."): name for name in file.names()}
    return {
        f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name: full
        for name, full in short.items()
    }


def _config(
    file: Checkpoint, names: Mapping[str, str], target: ModelConfig, tokens: Ids | None
) -> tuple[Eagle3Config, RopeConfig]:
    """Read the configuration, and compare it with the target's. Raises LoadError."""
    settings = trained.flattened(file, "eagle_config", "transformer_layer_config")
    sizes = trained.decoder_sizes(settings, target.vocab_size)
    width = settings.integer("target_hidden_size", 0, low=0, high=WIDEST) or target.hidden_size
    compared = [(sizes["vocab_size"], target.vocab_size, "a vocabulary of")]
    trained.check_sizes([*compared, (width, target.hidden_size, "states of width")])
    layers = _layers(settings, target.num_layers)
    rope = trained.rope(settings, sizes["head_dim"])
    fc_norms = settings.flag("fc_norm", False) or _has(file, names, "fc_norm.0")
    config = Eagle3Config(
        **sizes,
        draft_vocab_size=target.vocab_size if tokens is None else len(tokens),
        rope_theta=rope.theta,
        rope_factors=rope.factors,
        rms_norm_eps=trained.norm_eps(settings, 1e-5),
        layers=layers,
        target_hidden_size=width,
        fc_norm=fc_norms,
        norm_before_fc=settings.flag("norm_before_fc", False),
        norm_output=settings.flag("norm_output", False),
        qk_norm=_has(file, names, "q_norm"),
        norm_before_residual=settings.flag("norm_before_residual", False),
        target_embedding=settings.flag("target_embedding", False) or not _has(file, names, "emb.0"),
        target_head=settings.flag("target_head", False) or not _has(file, names, "head.0"),
    )
    if config.target_embedding or config.target_head:
        trained.check_sizes([(config.hidden_size, target.hidden_size, "embeddings of width")])
    return config, rope


def _has(file: Checkpoint, names: Mapping[str, str], name: str) -> bool:
    return f"{NAMES[name][file.kind == 'gguf']}.weight" in names


def _layers(settings: Settings, num_layers: int) -> tuple[int, ...]:
    """Read which layers' outputs are its inputs (the aux layers). Raises LoadError.

    Others name a layer by what goes into it, except those of SpecForge and SGLang, which begin with 1: the first
    layer's output is never read, so that its number tells the two apart (SGLang's pull request 25454).
    """
    key = trained.key_of(
        settings,
        "layers",
        "eagle_aux_hidden_state_layer_ids",
        "target_layers",
        "extract_layers",
    )
    given = settings.get(key) or (
        None if settings.is_gguf else [2, num_layers // 2, num_layers - 3]
    )
    starts_with_1 = isinstance(given, list) and given[0] == 1 and not settings.is_gguf
    shift = 0 if key == "layers" or starts_with_1 else 1
    layers = trained.layer_ids(given, shift)
    if len(layers) != NUM_LAYERS or not all(0 <= i < num_layers for i in layers):
        raise LoadError(
            f"three layers of {shift} to {num_layers - 1 + shift} must be read, got {short_repr(given)}"
        )
    return tuple(layers)
