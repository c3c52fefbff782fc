"""Muon steps by matrices of equal singular values; the rate rises, stays and falls; a state goes on where it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from forerun.lab.torch.networks.mlp_speculator import GateLinear
from forerun.lab.train.optimizer import LEAST, Optimizer, rate


@pytest.mark.parametrize("shape", [(40, 10), (10, 40), (20, 20)])
def test_a_matrix_steps_by_nearly_equal_singular_values_as_large_as_it_is(shape) -> None:
    torch.manual_seed(0)
    net = nn.Linear(*shape[::-1])
    nn.init.normal_(net.weight, std=3 * shape[1] ** -0.5)
    before = net.weight.detach().clone()
    optimizer = Optimizer(net, "muon", 0.1, 0.05)
    (net(torch.randn(64, shape[1]) * 100).square().sum()).backward()
    optimizer.step(0.5)
    values = torch.linalg.svdvals(net.weight.detach() - before)
    values = values / (0.1 * 0.5 * 3 * max(1.0, shape[0] / shape[1]) ** 0.5)
    assert 0.5 < values.min() <= values.max() < 1.35


def test_each_gate_of_a_cell_steps_as_a_matrix_of_its_own() -> None:
    def spreads(linear: nn.Linear) -> list[float]:
        torch.manual_seed(0)
        nn.init.normal_(linear.weight, std=30**-0.5)
        before = linear.weight.detach().clone()
        optimizer = Optimizer(nn.ModuleList([linear, nn.LayerNorm(2)]), "muon", 0.1, 0.05)
        scales = torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(10)
        (linear(torch.randn(64, 30)) * scales).square().sum().backward()
        optimizer.step(1.0)
        parts = (linear.weight.detach() - before).chunk(3)
        values = [torch.linalg.svdvals(part) for part in parts]
        return [float(each.max() / each.min()) for each in values]

    assert max(spreads(GateLinear(30, 3, 10))) < 2
    assert max(spreads(nn.Linear(30, 30, bias=False))) > 2


def test_embeddings_are_no_matrices_to_muon() -> None:
    """A step of 49152 x 576 numbers by Muon takes seconds; and a token's row has nothing to do with the others."""
    net = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8, bias=False))
    before = [weight.detach().clone() for weight in net.parameters()]
    net(torch.tensor([3, 4])).square().sum().backward()
    Optimizer(net, "muon", 0.1, 0.05).step(1.0)
    table, matrix = (
        weight.detach() - old for weight, old in zip(net.parameters(), before, strict=True)
    )
    assert table.any(1).nonzero().flatten().tolist() == [3, 4]
    assert matrix.any(1).all()


def test_the_rate_rises_stays_and_falls() -> None:
    shares = [rate(done / 100, 0.1, 0.4) for done in range(101)]
    assert shares[0] < shares[5] < shares[10] == shares[60] == 1 > shares[80] > shares[100]
    assert shares[100] == pytest.approx(LEAST)
    assert rate(0.99, 0, 0) == 1


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_problem_is_solved_and_a_state_goes_on_bit_for_bit(name) -> None:
    torch.manual_seed(0)
    wanted, x = torch.randn(6, 8), torch.randn(64, 8)

    def run(net: nn.Linear, optimizer: Optimizer, steps: int) -> float:
        for _ in range(steps):
            loss = (net(x) - x @ wanted.T).square().mean()
            loss.backward()
            optimizer.step(0.3)
        return float(loss.detach())

    net = nn.Linear(8, 6)
    optimizer = Optimizer(net, name, 0.1, 0.05)
    first = run(net, optimizer, 20)
    again = nn.Linear(8, 6)
    again.load_state_dict(net.state_dict())
    other = Optimizer(again, name, 0.1, 0.05)
    other.load(copy.deepcopy(optimizer.state()))  # as a file is
    assert run(net, optimizer, 30) == run(again, other, 30) < first
    assert torch.equal(net.weight, again.weight)
