"""EAGLE-3: a row sees what came before it and nothing else, computed at once or one by one."""

import pytest

pytest.importorskip("torch")

from dataclasses import replace

import torch

from forerun.drafters.eagle3.config import Eagle3Config
from forerun.lab.torch.networks.eagle3 import Eagle3, Keys

V, D, W, L = 40, 16, 40, 7
SMALL = Eagle3Config(
    vocab_size=V,
    draft_vocab_size=24,
    hidden_size=D,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    layers=(1, 3, 5),
)
CONFIGS = [
    SMALL,
    replace(SMALL, fc_norm=False, norm_output=False, qk_norm=True, norm_before_residual=True),
]


def made(config: Eagle3Config) -> Eagle3:
    torch.manual_seed(0)
    return Eagle3(config, embedding=torch.randn(V, D), head=torch.randn(24, D)).eval()


@pytest.mark.parametrize("config", CONFIGS)
def test_rows_one_by_one_are_rows_at_once(config: Eagle3Config) -> None:
    net = made(config)
    g = net.fuse(torch.randn(2, L, 3 * D))
    tokens, positions = torch.randint(V, (2, L)), torch.arange(L).expand(2, L)
    _, wanted, _ = net.step(g, tokens, positions)
    keys: Keys | None = None
    for row in range(L):
        here = slice(row, row + 1)
        _, got, keys = net.step(g[:, here], tokens[:, here], positions[:, here], keys)
        torch.testing.assert_close(got[:, 0], wanted[:, row])
    assert keys is not None
    assert keys.keys.shape == (2, 2, L, 8)


def test_a_row_does_not_see_later_ones() -> None:
    net = made(SMALL)
    g, tokens = net.fuse(torch.randn(1, L, 3 * D)), torch.randint(V, (1, L))
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % V
    positions = torch.arange(L)[None]
    before, after = (net.step(g, each, positions)[1] for each in (tokens, other))
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_positions_are_relative() -> None:
    net = made(SMALL)
    g, tokens, positions = (
        net.fuse(torch.randn(1, L, 3 * D)),
        torch.arange(L)[None],
        torch.arange(L)[None],
    )
    near, far = (net.step(g, tokens, positions + offset)[1] for offset in (0, 100))
    torch.testing.assert_close(near, far, atol=1e-4, rtol=1e-4)
