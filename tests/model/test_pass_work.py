"""What a pass has to do: multiply-adds as the model counts its operations, bytes as its weights have."""

from __future__ import annotations

import itertools
import math

import pytest

from forerun.model.backends.base import BlankWeight
from forerun.model.config import ExpertsConfig, ModelConfig, flops_per_token, weight_shapes
from forerun.model.pass_work import expected_experts, pass_work
from forerun.weights.codes import FORMATS
from tests.native.models import EXPERTS, GATED, PER_LAYER, SINKS

CONFIGS = (GATED, EXPERTS, PER_LAYER, SINKS)


def blank(config: ModelConfig, form: str = "q4_0") -> list[BlankWeight]:
    shapes = weight_shapes(config).items()
    return [BlankWeight(name, shape, FORMATS[form], False) for name, shape in shapes]


@pytest.mark.parametrize("num_rows", [1, 2, 8])
@pytest.mark.parametrize("config", CONFIGS)
def test_multiply_adds_are_half_the_operations_of_the_rows(
    config: ModelConfig, num_rows: int
) -> None:
    work = pass_work(blank(config), config, num_rows)
    assert 2 * work.multiply_adds == pytest.approx(num_rows * flops_per_token(config), rel=1e-3)


def test_every_expert_is_read_by_many_rows_and_no_more_than_the_chosen_by_one() -> None:
    weights = blank(EXPERTS)
    sizes = {w.name: math.prod(w.shape) * 4.5 / 8 for w in weights if w.name != "embed"}
    experts = {0: EXPERTS.layer(0).experts, 1: EXPERTS.layer(1).experts}
    one = sum(
        size * (experts[int(name[7])].num_active / experts[int(name[7])].num_experts)  # type: ignore[union-attr]
        if ".expert_" in name
        else size
        for name, size in sizes.items()
    )
    row = EXPERTS.hidden_size * 4.5 / 8
    assert pass_work(weights, EXPERTS, 1).nbytes == pytest.approx(one + row)
    whole = sum(sizes.values()) + EXPERTS.vocab_size * row
    assert pass_work(weights, EXPERTS, 1000).nbytes == pytest.approx(whole)


@pytest.mark.parametrize(("num_experts", "num_active"), [(4, 2), (5, 1), (3, 3)])
def test_expected_experts_are_the_mean_over_all_choices(num_experts: int, num_active: int) -> None:
    choices = list(itertools.combinations(range(num_experts), num_active))
    for num_rows in (1, 2, 3):
        chosen = [len(set().union(*rows)) for rows in itertools.product(choices, repeat=num_rows)]
        expected = expected_experts(ExpertsConfig(num_experts, num_active, 32), num_rows)
        assert expected == pytest.approx(sum(chosen) / len(chosen))


def test_a_pass_takes_the_longer_of_reading_and_multiplying() -> None:
    work = pass_work(blank(GATED), GATED, 4)
    assert work.seconds(1.0, 1e30) == work.nbytes
    assert work.seconds(1e30, 1.0) == work.multiply_adds
