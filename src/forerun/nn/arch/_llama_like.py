"""Llama-like configs: RMS norm, rotary positions, a gated MLP. A family adds what it does differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.core.errors import LoadError
from forerun.nn.arch._rope import rope_from_gguf, rope_from_hf
from forerun.nn.arch._settings import Settings, window_from_hf
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint


def llama_like_from_hf(checkpoint: Checkpoint, family: str) -> ModelConfig:
    """From a Hugging Face config.json. Raises LoadError for what is missing or not supported."""
    settings = Settings(checkpoint)
    num_heads, width = settings["num_attention_heads"], settings["hidden_size"]
    head_dim = settings.get("head_dim", width // num_heads)
    return ModelConfig(
        family=family,
        vocab_size=settings["vocab_size"],
        hidden_size=width,
        intermediate_size=settings["intermediate_size"],
        num_layers=settings["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=settings.get("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position=settings["max_position_embeddings"],
        norm_eps=settings["rms_norm_eps"],
        activation=settings.activation("hidden_act"),
        rope=rope_from_hf(settings, head_dim),
        tied_head=settings.is_tied(),
        sliding_window=window_from_hf(settings),
    )


def llama_like_from_gguf(checkpoint: Checkpoint, family: str) -> ModelConfig:
    """From GGUF metadata. Raises LoadError for what is missing or not supported."""
    settings = Settings(checkpoint)
    settings.refuse("expert_count", 0)
    num_heads, width = settings["attention.head_count"], settings["embedding_length"]
    num_kv_heads = settings.get("attention.head_count_kv", num_heads)
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
        raise LoadError("layers with different numbers of heads are not supported")
    head_dim = settings.get("attention.key_length", width // num_heads)
    settings.refuse("attention.value_length", head_dim)
    return ModelConfig(
        family=family,
        vocab_size=checkpoint.tensor("token_embd.weight").shape[0],
        hidden_size=width,
        intermediate_size=settings["feed_forward_length"],
        num_layers=settings["block_count"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=settings["context_length"],
        norm_eps=settings["attention.layer_norm_rms_epsilon"],
        rope=rope_from_gguf(settings, head_dim),
        tied_head=settings.is_tied(),
        sliding_window=settings.get("attention.sliding_window") or None,
    )
