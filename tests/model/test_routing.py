"""Routers, layers of one sublayer and latents: files that say what is not computed, or what cannot be, are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from typing import Any

import numpy as np

from forerun.core.errors import LoadError
from forerun.model.arch.base.source import TensorSource
from forerun.weights.codes import FORMATS
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_spellings import SPELLINGS
from tests.model.test_loader import changed
from tests.model.tiny import checkpoint_of, hf_model, load_torch
from tests.native.models import GATED, stored


@pytest.mark.parametrize(
    ("family", "config", "complaint"),
    [
        ("glm4_moe", {"n_group": 3}, "do not divide 8 experts"),
        ("glm4_moe", {"topk_group": 9}, "'topk_group' is 9"),
        ("glm4_moe", {"n_routed_experts": 0}, "needs experts"),
        ("deepseek_v3", {"n_group": 8, "topk_group": 1}, "fewer than the 2 that a row chooses"),
        ("deepseek_v2", {"topk_method": "dice"}, "topk_method 'dice' is not supported"),
        ("deepseek_v3", {"rope_interleave": False}, "rotated pairs are halves"),
        ("deepseek_v3", {"kv_lora_rank": 30}, "'kv_lora_rank' is 30, but must be a multiple of 4"),
        ("nemotron_h_moe", {"layers_block_type": ["mlp", "lstm"]}, "must be of M, "),
        ("nemotron_h_moe", {"moe_latent_size": 8}, "moe_latent_size=8 is not supported"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act='silu' is not supported"),
        ("ernie4_5_moe", {"moe_layer_interval": 0}, "'moe_layer_interval' is 0"),
    ],
)
def test_folders(family: str, config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(LoadError, match=complaint):
        load_torch(changed(checkpoint_of(hf_model(family)), **config))


@pytest.mark.parametrize(
    ("family", "metadata", "complaint"),
    [
        ("glm4_moe", {"expert_gating_func": 4}, "expert_gating_func' is 4, but must be 1 or 2"),
        ("deepseek_v3", {"attention.key_length_mla": 8}, "leaves nothing beside 8 rotated"),
        ("nemotron_h", {"feed_forward_length": 48}, "must be 5 numbers"),
    ],
)
def test_gguf(family: str, metadata: dict[str, Any], complaint: str) -> None:
    _, architecture, changes, usual = next(each for each in SPELLINGS if each[0] == family)
    model = hf_model(family, **changes)
    with pytest.raises(LoadError, match=complaint):
        load_torch(as_gguf(model, architecture, {**usual, **metadata}))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
def test_the_half_for_keys_of_an_older_file_is_turned_by_head(dtype: str) -> None:
    """3 heads of 4 rows for keys and 6 for values, of 32 columns; codes become fp16, which keeps these."""
    both = stored("kv_b", np.random.default_rng(0).standard_normal((30, 32)), dtype)
    source = TensorSource("kv_b", slice(0, 4), 10, 3, num_transposed=3)
    assert source.stored_shape((3 * 32, 4)) == both.shape
    taken = source.take([both], GATED)
    expected = both.dequantize().reshape(3, 10, 32)[:, :4].swapaxes(1, 2).reshape(96, 4)
    form = source.stored_format(FORMATS[dtype])
    assert taken.format is form
    assert np.allclose(taken.dequantize(), expected, rtol=0 if dtype != "q8_0" else 1e-3)
