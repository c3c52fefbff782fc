"""What sets a family apart matters in its tiny model, and is computed as Hugging Face computes it, on and off."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pathlib import Path
from typing import Any

import torch
import transformers

from forerun.core.errors import LoadError
from forerun.model.loader import read_config
from forerun.weights.checkpoint import open_checkpoint
from tests.model.test_families import TOKENS, assert_close
from tests.model.tiny import (
    FAMILIES,
    SEEING,
    checkpoint_from,
    checkpoint_of,
    hf_logits,
    hf_model,
    load_torch,
    prefill,
    randomize,
)


def without(family: str, part: str, key: str | None = None, value: Any = None) -> dict[str, Any]:
    """Change one number of the rotary settings, or of those of one kind of layer."""
    parameters = dict(FAMILIES[family][2]["rope_parameters"])
    if key is None:
        return {"rope_parameters": parameters | {part: value}}
    return {"rope_parameters": parameters | {part: parameters[part] | {key: value}}}


PLAIN = {"full_attention": {"rope_type": "default", "rope_theta": 5000.0}}
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"query_pre_attn_scalar": 16}),
    ("gemma2", {"sliding_window": 100}),
    ("gemma3", {"query_pre_attn_scalar": 16}),
    ("gemma3", {"sliding_window": 100}),
    ("gemma3", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("gemma3", without("gemma3", "sliding_attention", "rope_theta", 5000.0)),
    ("gemma3", without("gemma3", "full_attention", "factor", 1.0)),
    ("gemma3n", {"activation_sparsity_pattern": [0.0] * 6}),
    ("gemma3n", {"num_kv_shared_layers": 0}),
    ("gemma3n", {"altup_num_inputs": 2}),
    ("gemma4", {"sliding_window": 100}),
    ("gemma4", {"final_logit_softcapping": None}),
    ("gemma4", without("gemma4", "full_attention", "partial_rotary_factor", 1.0)),
    ("gemma4", without("gemma4", "full_attention", "rope_theta", 100.0)),
    ("gemma4_moe", {"top_k_experts": 3}),
    ("ministral", {"layer_types": ["full_attention", "full_attention"]}),
    ("ministral3", without("ministral3", "llama_4_scaling_beta", value=1e-6)),
    ("ministral3", without("ministral3", "mscale", value=2.0)),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),
    ("smollm3", {"no_rope_layers": [0, 1, 1, 1]}),
    ("olmo3", {"sliding_window": 100}),
    ("olmo3", without("olmo3", "full_attention", "factor", 1.0)),
    ("olmo3", without("olmo3", "sliding_attention", "rope_theta", 5000.0)),
    ("qwen3_moe", {"norm_topk_prob": False}),
    ("qwen3_moe", {"num_experts_per_tok": 3}),
    ("olmoe", {"norm_topk_prob": True}),
    ("olmoe", {"num_experts_per_tok": 6}),
    ("exaone4", {"sliding_window": 100}),
    ("exaone4", {"layer_types": ["full_attention", "full_attention"]}),
    ("glm", {"partial_rotary_factor": 1.0}),
    ("glm4", {"partial_rotary_factor": 0.5}),
    ("cohere", {"use_qk_norm": False}),
    ("cohere", {"logit_scale": 0.0625}),
    ("cohere2", {"sliding_window": 100}),
    ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}),
    ("starcoder2", {"sliding_window": None}),
    ("mixtral", {"sliding_window": None}),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("gpt_oss", {"sliding_window": 100}),
    ("gpt_oss", {"num_experts_per_tok": 3}),
    ("gpt_oss", without("gpt_oss", "truncate", value=True)),
    ("gpt_oss", without("gpt_oss", "factor", value=1.0)),
    ("granitemoe", {"num_experts_per_tok": 1}),
    ("granitemoeshared", {"residual_multiplier": 1.0}),
    ("granitemoehybrid", {"position_embedding_type": "rope"}),
    ("granitemoehybrid", {"attention_multiplier": 0.3}),
)


@pytest.mark.parametrize(("family", "changes"), CHANGES, ids=str)
def test_an_oddity_matters_and_is_followed(family: str, changes: dict[str, Any]) -> None:
    model = hf_model(family, **changes)
    expected = hf_logits(model, TOKENS)
    assert (expected - hf_logits(hf_model(family), TOKENS)).abs().max() > 0.01
    assert_close(prefill(load_torch(checkpoint_of(model)), TOKENS), expected)


def differs_without(model: transformers.PreTrainedModel, name: str, value: float) -> bool:
    """Whether weights of that name matter: set to a number, the logits are others."""
    before = hf_logits(model, TOKENS)
    with torch.no_grad():
        for weight_name, weight in (*model.named_parameters(), *model.named_buffers()):
            if name in weight_name:
                weight.fill_(value)
    return bool((hf_logits(model, TOKENS) - before).abs().max() > 0.01)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("gpt_oss", "sinks", -1e9),
        ("gpt_oss", "router.bias", 0.0),
        ("gpt_oss", "gate_up_proj_bias", 0.0),
        ("gpt_oss", "down_proj_bias", 0.0),
        ("gpt_oss", "o_proj.bias", 0.0),
        ("granitemoehybrid", "shared_mlp.output", 0.0),
        ("gemma3", "post_feedforward_layernorm", 0.0),
        ("gemma3n", "prediction_coefs", 0.0),
        ("gemma3n", "correction_coefs", 0.0),
        ("gemma3n", "correct_output_scale", 1.0),
        ("gemma3n", "altup_projections", 0.0),
        ("gemma3n", "altup_unembed_projections", 0.0),
        ("gemma3n", "post_laurel_norm", 0.0),
        ("gemma3n", "per_layer_projection.", 0.0),
        ("gemma4", "layer_scalar", 1.0),
        ("gemma4", "embed_tokens_per_layer", 0.0),
        ("gemma4", "per_layer_model_projection", 0.0),
        ("gemma4", "per_layer_projection.", 0.0),
        ("gemma4_moe", "router.scale", 1.0),
        ("gemma4_moe", "per_expert_scale", 1.0),
        ("gemma4_moe", "pre_feedforward_layernorm_2", 1.0),
        ("gemma4_moe", "post_feedforward_layernorm_1", 0.0),
        ("olmo2", "k_norm", 1.0),
        ("hunyuan", "key_layernorm", 1.0),
        ("cohere", "k_norm", 1.0),
        ("glm4", "post_mlp_layernorm", 0.0),
    ],
)
def test_the_tiny_model_depends_on_such_weights(family: str, name: str, value: float) -> None:
    assert differs_without(hf_model(family), name, value)


def test_the_clamps_of_gpt_oss_bite() -> None:
    free = hf_logits(hf_model("gpt_oss", swiglu_limit=1e9), TOKENS)
    assert (free - hf_logits(hf_model("gpt_oss"), TOKENS)).abs().max() > 0.01
    with pytest.raises(LoadError, match=r"swiglu_limit=1000000000.0 is not supported: only 7.0 is"):
        read_config(checkpoint_of(hf_model("gpt_oss", swiglu_limit=1e9)))


def seeing(kind: str) -> transformers.PreTrainedModel:
    """A model with eyes, of whose text half the family is another."""
    torch.manual_seed(3)
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    text = FAMILIES[kind][2]
    if kind == "gemma4":
        config = transformers.Gemma4Config(
            text_config={**text, "model_type": "gemma4_text"},
            vision_config={**vision, "head_dim": 8, "global_head_dim": 8, "num_key_value_heads": 2},
        )
        model = transformers.Gemma4ForConditionalGeneration(config)
    elif kind == "gemma3":
        config = transformers.Gemma3Config(
            text_config={**text, "model_type": "gemma3_text"}, vision_config=vision
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
    else:
        config = transformers.Mistral3Config(
            text_config={**text, "model_type": kind},
            vision_config={**vision, "model_type": "pixtral", "head_dim": 8},
        )
        model = transformers.Mistral3ForConditionalGeneration(config)
    randomize(model.eval().float())
    model.tie_weights()
    return model


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "ministral3", "mistral", *SEEING])
def test_the_text_half_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    model = hf_model(kind) if kind in SEEING else seeing(kind)
    expected = hf_logits(model, TOKENS)
    checkpoint = checkpoint_of(model)
    assert_close(prefill(load_torch(checkpoint), TOKENS), expected)
    older = {
        name.replace("model.language_model.", "language_model.model.").replace(
            "lm_head.", "language_model.lm_head."
        ): weight
        for name, weight in model.state_dict().items()
    }
    renamed = checkpoint_from(type(model).__name__, model.config.to_dict(), older)
    assert_close(prefill(load_torch(renamed), TOKENS), expected)
    model.save_pretrained(tmp_path)
    assert_close(prefill(load_torch(open_checkpoint(tmp_path)), TOKENS), expected)


def test_the_text_half_of_gemma_3n() -> None:
    """Beside towers for pictures and sound, and with keys and values that no layer uses."""
    model = hf_model("gemma3n")
    tensors = {
        name.replace("model.", "model.language_model."): weight
        for name, weight in checkpoint_of(model).tensors.items()
    }
    first = "model.language_model.layers.0.self_attn."
    for part in ("k_proj", "v_proj", "k_norm"):
        unused = f"model.language_model.layers.5.self_attn.{part}.weight"
        tensors[unused] = tensors[f"{first}{part}.weight"]
    tensors["model.audio_tower.norm.weight"] = tensors["model.embed_vision.norm.weight"] = (
        torch.ones(4)
    )
    config = {"model_type": "gemma3n", "text_config": model.config.to_dict()}
    whole = checkpoint_from("Gemma3nForConditionalGeneration", config, tensors)
    assert_close(prefill(load_torch(whole), TOKENS), hf_logits(model, TOKENS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"altup_active_idx": 1}, "altup_active_idx=1 is not supported: only 0 is"),
        ({"altup_correct_scale": False}, "altup_correct_scale=False is not supported"),
        ({"altup_num_inputs": 9}, "must be a whole number from 2 to 8"),
        ({"activation_sparsity_pattern": [0.5]}, "must be 6 numbers from 0 to below 1"),
        ({"hidden_size_per_layer_input": 0}, "is 0, but Gemma 3n needs it"),
    ],
)
def test_what_no_gemma_3n_has_is_refused(changes: dict[str, Any], message: str) -> None:
    model = hf_model("gemma3n")
    config = model.config.to_dict() | changes
    with pytest.raises(LoadError, match=message):
        read_config(checkpoint_from("Gemma3nForCausalLM", config, checkpoint_of(model).tensors))


def test_experts_of_qwen3_vl_lie_either_way() -> None:
    """Published folders have (experts, in, out), transformers writes (experts, out, in)."""
    model = hf_model("qwen3_vl_moe")
    tensors = {
        name: weight.mT.contiguous() if ".experts." in name else weight
        for name, weight in model.state_dict().items()
    }
    published = checkpoint_from(type(model).__name__, model.config.to_dict(), tensors)
    assert_close(prefill(load_torch(published), TOKENS), hf_logits(model, TOKENS))


def test_a_silent_config_means_what_the_family_usually_is() -> None:
    """As the config.json of Gemma 3 4B: what is usual is left out, and rope is spelled as it was."""
    silent = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    silent |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    usual = transformers.Gemma3TextConfig(**silent)
    model = hf_model("gemma3")
    config = {**silent, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config |= {"vocab_size": 61, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    ours, _ = read_config(
        checkpoint_from("Gemma3ForCausalLM", config, checkpoint_of(model).tensors)
    )
    kinds = [ours.layer(i) for i in range(2)]
    assert all(kind.sliding_window == 1024 for kind in kinds)
    local = kinds[0].rope
    assert local is not None
    assert local.theta == usual.rope_parameters["sliding_attention"]["rope_theta"]
    assert local.factors is None
    assert ours.attention_scale == usual.query_pre_attn_scalar**-0.5
    assert ours.norm_eps == usual.rms_norm_eps
    assert ours.max_position == usual.max_position_embeddings
