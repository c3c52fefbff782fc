"""Losses through a head, frozen or not: value and gradients are those of autograd, and mean what they say."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from forerun.lab.train import losses
from forerun.lab.train.losses import ETA, through_head

N, D, V = 150, 12, 31  # more rows than a block


@pytest.fixture
def given():
    torch.manual_seed(0)
    p = torch.randn(N, V + 9).mul(2).softmax(-1)[:, :V]  # the rest is outside the draft vocabulary
    return torch.randn(N, D, requires_grad=True), torch.randn(V, D, requires_grad=True), p


def plain(out, head, p, loss):
    log_q = (out @ head.T).log_softmax(-1)
    alpha = torch.minimum(p, log_q.exp()).sum(-1)
    kl = -(p * log_q).sum(-1)
    if loss == "kl":
        return kl.sum(), alpha
    if loss == "lk":
        weight = torch.exp(-ETA * alpha.detach())
        return (weight * kl + (1 - weight) * (1 - alpha)).sum(), alpha
    best, at = p.max(-1)
    inside = best > 1 - p.sum(-1)
    return -(log_q.gather(-1, at[:, None])[:, 0] * inside).sum(), alpha


@pytest.mark.parametrize("loss", ["kl", "lk", "ce"])
def test_value_gradient_and_alpha_are_autograds(given, loss) -> None:
    out, head, p = given
    value, alpha = through_head(out, head, p, loss)
    (3 * value).backward()
    got, out.grad, of_head, head.grad = out.grad, None, head.grad, None
    wanted, wanted_alpha = plain(out, head, p, loss)
    (3 * wanted).backward()
    assert_close(value, wanted)
    assert_close(alpha, wanted_alpha.detach())
    assert_close(got, out.grad, atol=1e-4, rtol=1e-4)
    assert_close(of_head, head.grad, atol=1e-3, rtol=1e-4)
    assert got.abs().sum() > 0
    through_head(out, head.detach(), p, loss)[0].backward()
    assert_close(out.grad, got * 4 / 3, atol=1e-4, rtol=1e-4)


def test_rows_the_draft_vocabulary_cannot_say_are_learned_from_little(given) -> None:
    out, head, p = given
    through_head(out, head, p * torch.linspace(1, 0, N)[:, None], "kl")[0].backward()
    assert not out.grad[-1].any()
    assert out.grad[:10].abs().mean() > 5 * out.grad[-10:].abs().mean()


def test_a_right_guess_has_alpha_one_and_no_gradient() -> None:
    logits = torch.randn(4, 6)
    _, alpha, slope = losses._of_logits(logits, logits.softmax(-1), "kl")
    assert_close(alpha, torch.ones(4))
    assert_close(slope, torch.zeros(4, 6), atol=1e-6, rtol=0)
