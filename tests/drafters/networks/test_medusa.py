"""Medusa: heads that are the target's own at first, under the published names."""

import torch

from forerun.drafters.medusa.config import MedusaConfig
from forerun.torch.networks.medusa import Medusa

SMALL = MedusaConfig(vocab_size=30, hidden_size=8, medusa_num_heads=3, medusa_num_layers=2)


def test_untrained_heads_on_the_targets_rows_say_what_the_target_says() -> None:
    head, hidden = torch.randn(30, 8), torch.randn(4, 5, 8)
    net = Medusa(MedusaConfig(30, 8, 3, target_head=True), head=head)
    assert torch.equal(net.step(hidden)[..., 1, :], hidden @ head.T)
    assert net.step(hidden).shape == (4, 5, 3, 30)


def test_names_are_those_of_published_files() -> None:
    shapes = {name: tuple(w.shape) for name, w in Medusa(SMALL).state_dict().items()}
    assert len(shapes) == 3 * (2 * 2 + 1)
    assert shapes["2.1.linear.weight"] == (8, 8)
    assert shapes["2.2.weight"] == (30, 8)
