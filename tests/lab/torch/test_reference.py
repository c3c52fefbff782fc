"""The reference ops against torch's own, and each of them against the row law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from forerun.lab.torch import reference as ops
from forerun.lab.torch.reference import KEY_BLOCK, TILE, KeyBlock


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("silu", functional.silu),
        ("gelu", functional.gelu),
        ("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh")),
        ("relu", functional.relu),
    ],
)
def test_activations(name: str, oracle) -> None:
    x = torch.cat((random(1000) * 4, torch.tensor([0.0, -200.0, 200.0])))
    torch.testing.assert_close(ops.ACTIVATIONS[name](x), oracle(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(ops.ACTIVATIONS))
@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_activation_does_not_depend_on_the_place(name: str, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for size in (7, 8 * 37, 40001):
            x = random(size) * 4
            rolled = ops.ACTIVATIONS[name](x.roll(5))
            assert torch.equal(rolled, ops.ACTIVATIONS[name](x).roll(5))
    finally:
        torch.set_num_threads(before)


def test_norms() -> None:
    x, weight, bias = random(TILE, 96), random(96, seed=1), random(96, seed=2)
    expected = functional.rms_norm(x, (96,), weight, 1e-5)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), expected)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    expected = (x - mean) / (variance + 1e-5).sqrt() * weight + bias
    torch.testing.assert_close(ops.layer_norm(x, weight, bias, 1e-5), expected)


def test_rope_rotates_feature_pairs_as_complex_numbers() -> None:
    x, angles = random(TILE, 3, 20), random(TILE, 1, 8, seed=1)
    turned = torch.complex(x[..., :8], x[..., 8:16]) * torch.polar(torch.ones(()), angles)
    expected = torch.cat((turned.real, turned.imag, x[..., 16:]), dim=-1)
    torch.testing.assert_close(ops.rope(x, angles.cos(), angles.sin()), expected)


@pytest.mark.parametrize(("out", "width"), [(576, 1536), (1536, 576), (192, 576), (12, 20), (7, 4)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_rows_do_not_depend_on_their_company(out: int, width: int, has_bias: bool) -> None:
    weight, x = random(out, width), random(TILE, width, seed=1)
    bias = random(out, seed=2) if has_bias else None
    together = ops.linear(x, weight, bias)
    for row in range(TILE):
        moved = torch.zeros_like(x)
        moved[TILE - 1 - row] = x[row]
        assert torch.equal(ops.linear(moved, weight, bias)[TILE - 1 - row], together[row])


def causal_blocks(first: int, num_blocks: int) -> list[KeyBlock]:
    """Tile row i sees positions 0 to first + i."""
    blocks = []
    for start in range(0, num_blocks * KEY_BLOCK, KEY_BLOCK):
        keys = torch.arange(start, start + KEY_BLOCK)
        hidden = keys > first + torch.arange(TILE)[:, None]
        blocks.append(KeyBlock(slice(start, start + KEY_BLOCK), hidden if hidden.any() else None))
    return blocks


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 16), (3, 3, 20), (8, 1, 64)])
def test_attention_is_softmax_attention(heads: int, groups: int, width: int) -> None:
    first = KEY_BLOCK + 3
    query = random(TILE, heads, width)
    keys, values = random(2, groups, 2 * KEY_BLOCK, width, seed=1)
    actual = ops.attention(query, keys, values, causal_blocks(first, 2), 0.2)
    visible = torch.arange(2 * KEY_BLOCK) <= first + torch.arange(TILE)[:, None]
    expected = functional.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, visible, scale=0.2, enable_gqa=True
    )
    torch.testing.assert_close(actual, expected.transpose(0, 1))


def test_keys_gathered_for_each_row_give_the_same_bits() -> None:
    query = random(TILE, 4, 16)
    keys, values = random(2, 2, 2 * KEY_BLOCK, 16, seed=1)
    shared = causal_blocks(KEY_BLOCK + 3, 2)
    order = torch.randperm(2 * KEY_BLOCK, generator=torch.Generator().manual_seed(2))
    where = order.argsort()
    gathered = [
        KeyBlock(where[block.rows].expand(TILE, KEY_BLOCK), block.hidden) for block in shared
    ]
    expected = ops.attention(query, keys, values, shared, 0.25)
    actual = ops.attention(query, keys[:, order], values[:, order], gathered, 0.25)
    assert torch.equal(actual, expected)


def test_blocks_nobody_sees_change_no_bit() -> None:
    query = random(TILE, 4, 16)
    keys, values = random(2, 2, 3 * KEY_BLOCK, 16, seed=1)
    seen = causal_blocks(40, 1)
    assert torch.equal(
        ops.attention(query, keys, values, causal_blocks(40, 3), 0.25),
        ops.attention(query, keys, values, seen, 0.25),
    )


def test_huge_scores_do_not_overflow() -> None:
    query, keys = torch.full((TILE, 1, 16), 1e3), torch.full((1, KEY_BLOCK, 16), 1e3)
    values = random(1, KEY_BLOCK, 16)
    out = ops.attention(query, keys, values, causal_blocks(0, 1), 1.0)
    torch.testing.assert_close(out[0, 0], values[0, 0])
    assert math.isfinite(float(out.sum()))
