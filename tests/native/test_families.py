"""Natively, every family computes what its Hugging Face model computes; its GGUF is a matter of names and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from forerun.core import tree
from forerun.core.batch import Segment
from forerun.model.backends.native import NativeDecoder
from forerun.model.loader import load_model
from forerun.weights.checkpoint import Checkpoint
from tests.arrays import assert_close
from tests.model.tiny import FAMILIES, VOCAB, checkpoint_of, hf_logits, hf_model
from tests.native.models import logits_of

TOKENS = tuple(np.random.default_rng(5).integers(0, VOCAB, 150).tolist())
NODES, PARENTS = TOKENS[3:12], (-1, 0, 0, 1, 2, 2, 5, -1, 7)
GRANITE = {"intermediate_size": 32}
GEMMA4 = {"head_dim": 16, "global_head_dim": 32}
SHARED = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
ROUTED = {"moe_intermediate_size": 32}
LATENT = {**ROUTED, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
WIDTHS: Mapping[str, Mapping[str, Any]] = {
    "opt": {"word_embed_proj_dim": 64},
    "gpt_bigcode": {"n_embd": 64},
    "qwen3_moe": {"moe_intermediate_size": 32},
    "qwen3_vl_moe": {"moe_intermediate_size": 32},
    "granite4": {"shared_intermediate_size": 48},
    "gemma4": GEMMA4 | {"hidden_size_per_layer_input": 32},
    "gemma4_moe": GEMMA4 | {"moe_intermediate_size": 32},
    "gemma3n": {"hidden_size_per_layer_input": 32, "laurel_rank": 32},
    "granitemoe": GRANITE,
    "granitemoeshared": GRANITE | {"shared_intermediate_size": 48},
    "granitemoehybrid": GRANITE | {"shared_intermediate_size": 48},
    "granite4_micro": {"mamba_d_head": 32},
    "granite4_mamba": GRANITE | {"shared_intermediate_size": 64, "mamba_d_head": 32},
    "qwen3_5_moe": SHARED,
    "qwen3_next": SHARED,
    "lfm2_moe": ROUTED,
    "glm4_moe": ROUTED,
    "ernie4_5_moe": ROUTED,
    "nemotron_h_moe": {**ROUTED, "moe_shared_expert_intermediate_size": 48},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "q_lora_rank": 32},
    "glm4_moe_lite": {**LATENT, "q_lora_rank": 32},
}
"""Multiples of 16, which the kernels need."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_and_a_tree_equal_hugging_face(family: str) -> None:
    """A text of more than two blocks of keys in one pass, a tree above it, and a kept path."""
    model = hf_model(family, **{"hidden_size": 64, **WIDTHS.get(family, {})})
    checkpoint = cast(Checkpoint, checkpoint_of(model))
    native = load_model(checkpoint)
    assert isinstance(native, NativeDecoder)
    cache = native.new_cache(1, 256, "fp32")
    texts = [TOKENS[: i + 1] for i in range(len(TOKENS))]
    found = logits_of(native, cache, Segment(0, 0, TOKENS, certain=len(TOKENS)))
    cache.keep(0, range(len(TOKENS)))
    texts += [(*TOKENS, *(NODES[i] for i in tree.path_to(n, PARENTS))) for n in range(len(NODES))]
    found = np.concatenate(
        (found, logits_of(native, cache, Segment(0, len(TOKENS), NODES, PARENTS)))
    )
    whole = hf_logits(model, TOKENS)
    expected = np.concatenate(
        (whole, *(hf_logits(model, text)[-1:] for text in texts[len(TOKENS) :]))
    )
    assert_close(found, expected, rtol=1e-3, atol=2e-3)
    assert np.array_equal(found.argmax(-1), expected.argmax(-1))
