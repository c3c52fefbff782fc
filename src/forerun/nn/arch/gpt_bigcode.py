"""GPT-BigCode (StarCoder, Granite-20B-code; arXiv 2305.06161): layer norm, learned positions, one kv head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.nn.arch._common import Kind, TensorSource, fused_rows, plain_source
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint

HF_ARCHITECTURES = ("GPTBigCodeForCausalLM",)
GGUF_ARCHITECTURES = ("starcoder",)

_HF_NAMES = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attn_norm": "transformer.h.{i}.ln_1",
    "q": "transformer.h.{i}.attn.c_attn",
    "k": "transformer.h.{i}.attn.c_attn",
    "v": "transformer.h.{i}.attn.c_attn",
    "o": "transformer.h.{i}.attn.c_proj",
    "mlp_norm": "transformer.h.{i}.ln_2",
    "up": "transformer.h.{i}.mlp.c_fc",
    "down": "transformer.h.{i}.mlp.c_proj",
}


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a Hugging Face folder."""
    settings = Settings(checkpoint)
    settings.refuse("multi_query", True)
    settings.refuse("scale_attn_weights", True)
    num_heads, width = settings["n_head"], settings["n_embd"]
    return ModelConfig(
        family="gpt_bigcode",
        vocab_size=settings["vocab_size"],
        hidden_size=width,
        intermediate_size=settings.get("n_inner", 4 * width),
        num_layers=settings["n_layer"],
        num_heads=num_heads,
        num_kv_heads=1,
        head_dim=width // num_heads,
        max_position=settings["n_positions"],
        norm="layer",
        norm_eps=settings["layer_norm_epsilon"],
        activation=settings.activation("activation_function"),
        gated_mlp=False,
        learned_position_offset=0,
        tied_head=settings.is_tied(),
    )


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file."""
    settings = Settings(checkpoint)
    num_heads, width = settings["attention.head_count"], settings["embedding_length"]
    return ModelConfig(
        family="gpt_bigcode",
        vocab_size=checkpoint.tensor("token_embd.weight").shape[0],
        hidden_size=width,
        intermediate_size=settings["feed_forward_length"],
        num_layers=settings["block_count"],
        num_heads=num_heads,
        num_kv_heads=settings.get("attention.head_count_kv", 1),
        head_dim=width // num_heads,
        max_position=settings["context_length"],
        norm="layer",
        norm_eps=settings["attention.layer_norm_epsilon"],
        activation="gelu_tanh",
        gated_mlp=False,
        learned_position_offset=0,
        tied_head=settings.is_tied(),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Where a canonical weight lies."""
    rows = fused_rows(name, config) if name in ("q", "k", "v") else None
    if kind == "hf":
        return TensorSource(_HF_NAMES[name], rows)
    return plain_source(name, kind) if rows is None else TensorSource("blk.{i}.attn_qkv", rows)
