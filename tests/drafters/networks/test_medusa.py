"""Medusa: heads that are the target's own at first."""

import pytest

pytest.importorskip("torch")

import torch

from forerun.drafters.medusa.config import MedusaConfig
from forerun.lab.torch.networks.medusa import Medusa


def test_untrained_heads_on_the_targets_rows_say_what_the_target_says() -> None:
    head, hidden = torch.randn(30, 8), torch.randn(4, 5, 8)
    net = Medusa(MedusaConfig(30, 8, 3, target_head=True), head=head)
    assert torch.equal(net.step(hidden)[..., 1, :], hidden @ head.T)
    assert net.step(hidden).shape == (4, 5, 3, 30)
