"""Medusa: the heads that are trained are those that draft, and its checkpoints."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json

import numpy as np
import torch

from forerun.core.errors import LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.networks import folder as network_folder
from forerun.drafters.medusa import NETWORK, Options, build
from forerun.drafters.medusa.config import MedusaConfig
from forerun.lab.torch.networks.medusa import Medusa
from tests.drafters.helpers import refusal
from tests.oracles.growth import Solo, Step
from tests.oracles.growth import draft as drafted
from tests.oracles.networks import TorchMedusa
from tests.tiny import tiny_model

WIDTH, VOCAB, HEADS = 32, 24, 3
IDS = np.arange(0, VOCAB, 2)
MODEL = tiny_model(3, sharpness=3.0)
TARGET = Target(MODEL, None, 4, 256)
OURS = {
    "model_type": "medusa",
    "hidden_size": WIDTH,
    "vocab_size": VOCAB,
    "medusa_num_heads": HEADS,
    "medusa_num_layers": 2,
    "draft_vocab_size": len(IDS),
    "target_head": True,
    "temperature": [1.2, 0.9, 1.0],
}


def trained(*, target_head=True) -> Medusa:
    config = MedusaConfig(VOCAB, WIDTH, HEADS, 2, len(IDS), target_head)
    head = torch.from_numpy(MODEL.head_weights(IDS))
    net = Medusa(config, head=head)
    torch.manual_seed(2)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return net


def save(path, config, tensors):
    network_folder.write(path, config, tensors)
    return str(path)


def ours(path, *, target_head=True):
    net = trained(target_head=target_head)
    tensors = {name: each.numpy() for name, each in net.state_dict().items()}
    return save(path, OURS | {"target_head": target_head}, tensors | {"draft_ids": IDS}), net


def hidden(rows=3):
    return np.random.default_rng(rows).standard_normal((rows, WIDTH), np.float32)


def trees(network, rows=3, nodes=9, steps=5):
    request = Solo([*range(rows)], [nodes] * rows, steps, 0.0, states=hidden(rows))
    return drafted(network, request)


@pytest.mark.parametrize("target_head", [True, False])
def test_what_was_trained_is_what_drafts(tmp_path, target_head):
    folder, net = ours(tmp_path, target_head=target_head)
    weights = NETWORK.read(folder, TARGET)
    network = TorchMedusa(weights, MODEL)
    for depth in range(HEADS):
        state = torch.from_numpy(hidden()[0])
        ids, probabilities = network.likeliest(state, Step(0, -1, 0, depth))
        logits = net.logits(state, depth) / OURS["temperature"][depth]
        expected = logits.softmax(-1).detach().numpy()
        assert np.allclose(expected[np.searchsorted(IDS, ids)], probabilities, atol=1e-5)


def test_a_depth_says_the_same_after_all_tokens(tmp_path):
    """So a step a depth is enough: with three steps, nodes of depth 3 hang below several of depth 2."""
    network = build(Options(model=ours(tmp_path)[0], quant="none"), TARGET)
    tokens, parents, probabilities = trees(network, 1, nodes=40, steps=3)[0]
    below = {}
    for i, (token, parent, p) in enumerate(zip(tokens, parents, probabilities, strict=True)):
        depth = 0 if parent < 0 else below[parent][0] + 1
        below[i] = depth, token, p
    by_depth = [{t: p for d, t, p in below.values() if d == depth} for depth in range(3)]
    assert all((t, p) in by_depth[d].items() for d, t, p in below.values())
    assert len({parents[i] for i, (d, _, _) in below.items() if d == 1}) > 1


def test_published_names_are_read(tmp_path):
    net = trained(target_head=False)
    tensors = {f"medusa_head.{name}": t for name, t in net.state_dict().items()}
    config = {"medusa_num_heads": HEADS, "medusa_num_layers": 2, "base_model_name_or_path": "x"}
    wrong = save(tmp_path / "a", config, tensors)
    with pytest.raises(
        LoadError, match=r"'medusa_head.0.2.weight' is \[12, 32\], expected \[24, 32\]"
    ):
        build(Options(model=wrong), TARGET)
    whole = {n: t.repeat(2, 1) if n.endswith(".2.weight") else t for n, t in tensors.items()}
    assert NETWORK.read(save(tmp_path / "b", config, whole), TARGET).tensors


@pytest.mark.parametrize(
    ("change", "drop", "message"),
    [
        (
            {"medusa_num_heads": 0},
            "",
            "'medusa_num_heads' is 0, but must be a whole number from 1 to 16",
        ),
        (
            {"medusa_num_heads": 99},
            "",
            "'medusa_num_heads' is 99, but must be a whole number from 1 to 16",
        ),
        ({}, "1.0.linear.bias", "tensor '1.0.linear.bias' is missing"),
        ({"medusa_num_heads": 2}, "", "tensor '2.0.linear.bias' is none of such a network"),
        ({"target": {"name": "big", "num_layers": 9}}, "", "for big, whose num layers is 9"),
    ],
)
def test_a_wrong_folder_is_told_in_a_line(tmp_path, change, drop, message):
    tensors = {n: t for n, t in trained().state_dict().items() if n != drop} | {"draft_ids": IDS}
    path = save(tmp_path, OURS | change, tensors)
    assert message in refusal(lambda: build(Options(model=path), TARGET))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(LoadError, match="'llama', which is not Medusa"):
        Options(model=path)
