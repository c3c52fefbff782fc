"""Gemma 4's assistants in files: Hugging Face folders and GGUF files, read as the Gemma 4 that they nearly are.

A folder has `pre_projection`, `post_projection` and, with `use_ordered_embeddings`, `masked_embedding.centroids` and
`masked_embedding.token_ordering`: cluster j has the tokens at j V / C to (j + 1) V / C of it. A GGUF file calls the
projections `nextn.*`, and has no clusters. All layers share the target's keys and values, none has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks.folder import integers
from forerun.drafters.base.networks.trained import UNTRAINED, untrained_tensors
from forerun.drafters.gemma4_assistant.network import AssistantWeights, Clusters
from forerun.hub.names import resolve
from forerun.model.arch.base.settings import Settings
from forerun.model.config import LayerConfig, ModelConfig
from forerun.model.loader import ASSISTANTS, check_shapes, find_arch, stored_weights
from forerun.model.shapes import weight_shapes
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.renamed import RenamedCheckpoint
from forerun.weights.stored import StoredTensor

_LIKE = {"hf": "Gemma4ForCausalLM", "gguf": "gemma4"}
_FAMILY = "gemma4"


def read(model: str, target: Target) -> AssistantWeights:
    """Read an assistant of a target. Raises LoadError that says what is wrong."""
    if model == UNTRAINED:
        return untrained(target.model.config)
    path = resolve(model)
    checkpoint = open_checkpoint(path)
    if checkpoint.architecture not in ASSISTANTS:
        raise LoadError(
            f"{path} is of the architecture {checkpoint.architecture!r}, which is not an assistant of Gemma 4: "
            f"{' and '.join(ASSISTANTS)} are; draft_model:model={model} takes any model of the same tokenizer"
        )
    try:
        return _read(_as_model(checkpoint, target.model.config), checkpoint, target.model.config)
    except LoadError as error:
        raise LoadError(f"{path} does not fit this model: {error}") from error


def untrained(target: ModelConfig) -> AssistantWeights:
    """Make an assistant of random weights for any model that attends, for checks."""
    source = max((i for i, (n, _) in enumerate(target.stored_heads()) if n), default=None)
    if source is None:
        raise LoadError(f"a {target.family} has no keys and values that an assistant could read")
    layer, (num_kv_heads, head_dim) = target.layer(source), target.heads(source)
    reading = LayerConfig(
        layer.rope,
        layer.sliding_window,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        shares_kv_of=source,
    )
    config = ModelConfig(
        family=target.family,
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.hidden_size,
        num_layers=2,
        num_heads=target.num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=target.max_position,
        layers=(reading, reading),
        tied_head=True,
        borrows_kv=True,
    )
    width = target.hidden_size
    shapes = {"pre": (width, 2 * width), "post": (width, width)}
    stored = untrained_tensors(shapes | weight_shapes(config))
    pre, post = stored.pop("pre"), stored.pop("post")
    return AssistantWeights(config, tuple(stored.items()), pre, post)


def _as_model(checkpoint: Checkpoint, target: ModelConfig) -> RenamedCheckpoint:
    """Return the file as that of a Gemma 4 whose layers have keys and values, as its module reads one."""
    model = RenamedCheckpoint(checkpoint, {"": ""})
    if checkpoint.kind == "hf":
        inner = checkpoint.config.get("text_config")
        inner = inner if isinstance(inner, Mapping) else {}
        model.config = {**checkpoint.config, **inner, "num_kv_shared_layers": 0}
    else:
        prefix, like = f"{checkpoint.architecture}.", f"{_LIKE['gguf']}."
        given = {
            key.replace(prefix, like, 1): value
            for key, value in checkpoint.config.items()
            if key != f"{prefix}nextn_predict_layers"
        }
        usual = {f"{like}attention.head_count_kv": target.num_kv_heads}
        model.config = {**usual, **given, f"{like}attention.shared_kv_layers": 0}
    model.architecture = _LIKE[checkpoint.kind]
    return model


def _read(
    model: RenamedCheckpoint, checkpoint: Checkpoint, target: ModelConfig
) -> AssistantWeights:
    settings, arch = Settings(model), find_arch(model)
    config = _reading(arch.config(settings), target)
    check_shapes(model, arch, config, settings)
    start = "nextn." if checkpoint.kind == "gguf" else ""
    shapes = {"pre": (config.hidden_size, 2 * target.hidden_size)}
    shapes["post"] = (target.hidden_size, config.hidden_size)
    projections = dict[str, StoredTensor]()
    for part, shape in shapes.items():
        stored = checkpoint.tensor(f"{start}{part}_projection.weight")
        if stored.shape != shape:
            raise LoadError(f"tensor '{stored.name}' should be {shape}, but is {stored.shape}")
        projections[part] = stored
    layers = tuple(stored_weights(model, arch, config))
    return AssistantWeights(config, layers, **projections, clusters=_clusters(checkpoint, config))


def _reading(config: ModelConfig, target: ModelConfig) -> ModelConfig:
    """Let each layer read the target's last one of its kind that has keys and values. Raises LoadError."""
    if target.family != _FAMILY:
        raise LoadError(f"it reads the keys and values of a Gemma 4, and this is a {target.family}")
    if config.vocab_size != target.vocab_size:
        raise LoadError(
            f"it guesses {config.vocab_size} tokens, and this model's vocabulary has {target.vocab_size}"
        )
    if config.per_layer_width is not None or any(layer.experts for layer in config.layers):
        raise LoadError("it has per-layer embeddings or experts, which no assistant has")
    layers, stored = [], target.stored_heads()
    for i in range(config.num_layers):
        layer, heads = config.layer(i), config.heads(i)
        is_local = layer.sliding_window is not None
        alike = [
            j
            for j, (num_heads, _) in enumerate(stored)
            if num_heads and (target.layer(j).sliding_window is not None) == is_local
        ]
        kind = "with a sliding window" if is_local else "that sees everything"
        if not alike:
            raise LoadError(f"this model has no layer {kind} for its layer {i} to read")
        if stored[alike[-1]] != heads:
            raise LoadError(
                f"its layer {i} reads {heads[0]} heads of {heads[1]} numbers, and this model's last layer {kind} "
                f"has {stored[alike[-1]][0]} of {stored[alike[-1]][1]}: it was made for another Gemma 4"
            )
        layers.append(replace(layer, shares_kv_of=alike[-1], has_values=True))
    return replace(
        config,
        layers=tuple(layers),
        logits_cap=None,
        borrows_kv=True,
        max_position=target.max_position,
        tied_head=True,
    )


def _clusters(checkpoint: Checkpoint, config: ModelConfig) -> Clusters | None:
    """Read the clusters of the head. Raises LoadError."""
    if not checkpoint.config.get("use_ordered_embeddings", False):
        return None
    settings = Settings(checkpoint)
    count = settings.integer("num_centroids", high=config.vocab_size)
    most = settings.integer("centroid_intermediate_top_k", high=count)
    centroids = checkpoint.tensor("masked_embedding.centroids.weight")
    order = integers(checkpoint, "masked_embedding.token_ordering").reshape(-1).astype(np.int64)
    if centroids.shape != (count, config.hidden_size):
        raise LoadError(
            f"tensor '{centroids.name}' should be {(count, config.hidden_size)}, but is {centroids.shape}"
        )
    if config.vocab_size % count or not np.array_equal(
        np.sort(order), np.arange(config.vocab_size)
    ):
        raise LoadError(
            f"'masked_embedding.token_ordering' must have each of {config.vocab_size} tokens once, in {count} clusters"
        )
    return Clusters(centroids.dequantize(), order.reshape(count, -1), most)
