"""The MLP speculator: published names and sizes, and maps on the target's rows that are as good as tables."""

import pytest

pytest.importorskip("torch")

import math
from dataclasses import replace

import torch
from torch.nn import functional

from forerun.drafters.mlp_speculator.config import MLPSpeculatorConfig
from forerun.lab.torch.networks.mlp_speculator import MLPSpeculator, rms

SMALL = MLPSpeculatorConfig(vocab_size=50, hidden_size=12, inner_dim=8, n_predict=3)
V, D, P, N = 50, 12, 8, 3


def test_tied_and_untied_sizes_are_those_of_the_published_models() -> None:
    tied = sum(w.numel() for w in MLPSpeculator(SMALL).parameters())
    assert tied == 2 * V * P + D * P + P * P + 2 * P
    untied = MLPSpeculator(replace(SMALL, tie_weights=False))
    size = sum(w.numel() for w in untied.parameters())
    assert size == 2 * N * V * P + D * P + (N - 1) * P * P + 2 * N * P
    assert {"emb.2.weight", "proj.2.weight", "head.2.weight", "ln.2.bias"} <= set(
        untied.state_dict()
    )


def test_the_cell_has_snowflakes_names() -> None:
    net = MLPSpeculator(replace(SMALL, cell="lstm", tie_lstm_embs=True))
    shapes = {name: tuple(w.shape) for name, w in net.state_dict().items()}
    assert shapes == {
        "projs.0.weight": (4 * P, D),
        "projs.1.weight": (4 * P, P),
        "forget_emb.0.weight": (V, P),
        "head.0.weight": (V, P),
        **{
            f"{norm}_ln.0.{part}": (P,) for norm in ("cell", "state") for part in ("weight", "bias")
        },
    }


def test_the_first_step_is_the_formula() -> None:
    net = MLPSpeculator(SMALL)
    hidden, tokens = torch.randn(5, D), torch.randint(V, (5,))
    _, logits = net.step(net.begin(hidden), tokens, 0)
    a = 0.5 ** (0.5 / N)
    b = math.sqrt((1 - a * a) * P / 2)
    u = rms(hidden) / math.sqrt(2) @ net.proj[0].weight.T + b / a * net.emb[0].weight[tokens]
    torch.testing.assert_close(logits, functional.gelu(rms(u)) @ net.head[0].weight.T)


@pytest.mark.parametrize("ties", [False, True])
def test_maps_on_the_targets_rows_multiply_into_tables(ties: bool) -> None:
    config = replace(SMALL, cell="lstm", tie_lstm_embs=ties)
    embedding, head = torch.randn(V, D), torch.randn(V, D)
    lean = MLPSpeculator(
        replace(config, target_embedding=True, target_head=True), embedding=embedding, head=head
    )
    full = MLPSpeculator(config)
    weights = lean.state_dict()
    tables = (embedding @ weights.pop("emb_map.weight").T).split(P, -1)
    names = ("forget_emb", "input_emb", "output_emb", "cell_emb")
    weights |= {f"{name}.0.weight": table for name, table in zip(names, tables, strict=False)}
    weights["head.0.weight"] = head @ weights.pop("head_map.weight")
    full.load_state_dict(weights)
    ours, theirs = lean.begin(torch.randn(4, D)), None
    theirs = ours
    for index in range(4):  # further than n_predict
        tokens = torch.randint(V, (4,))
        ours, got = lean.step(ours, tokens, index)
        theirs, wanted = full.step(theirs, tokens, index)
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert ours.cell.abs().sum() > 0
