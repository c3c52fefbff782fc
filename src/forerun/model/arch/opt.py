"""OPT (Zhang et al., arXiv 2205.01068): layer norm, learned positions read from row 2 on, plain ReLU MLP."""

from __future__ import annotations

from forerun.model.arch.base.settings import Settings
from forerun.model.arch.base.source import Kind, TensorSource
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("OPTForCausalLM",)
GGUF_ARCHITECTURES: tuple[str, ...] = ()

_POSITION_OFFSET = 2

_NAMES = {
    "embed": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
    "attn_norm": "model.decoder.layers.{i}.self_attn_layer_norm",
    "q": "model.decoder.layers.{i}.self_attn.q_proj",
    "k": "model.decoder.layers.{i}.self_attn.k_proj",
    "v": "model.decoder.layers.{i}.self_attn.v_proj",
    "o": "model.decoder.layers.{i}.self_attn.out_proj",
    "mlp_norm": "model.decoder.layers.{i}.final_layer_norm",
    "up": "model.decoder.layers.{i}.fc1",
    "down": "model.decoder.layers.{i}.fc2",
}


def config(settings: Settings) -> ModelConfig:
    """Return the config of a Hugging Face folder. Variants of 350M (post-norm, projected embeddings) are refused."""
    settings.keys |= {"intermediate_size": "ffn_dim"}
    sizes = settings.sizes()
    settings.reject("do_layer_norm_before", True)
    settings.reject("_remove_final_layer_norm", False)
    settings.reject("layer_norm_elementwise_affine", True)
    settings.reject("word_embed_proj_dim", sizes["hidden_size"])
    return ModelConfig(
        family="opt",
        **sizes,
        norm="layer",
        activation=settings.activation("activation_function"),
        gated_mlp=False,
        learned_position_offset=_POSITION_OFFSET,
        tied_head=settings.is_tied(),
    )


def source(name: str, config: ModelConfig, kind: Kind) -> TensorSource:
    """Return where a canonical weight lies."""
    return TensorSource(_NAMES[name])
