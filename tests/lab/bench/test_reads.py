"""What a pass reads: tables by the row, experts as often as they are chosen, all else whole."""

from __future__ import annotations

import itertools

import pytest

from forerun.lab.bench.reads import expected_experts, share_read
from forerun.model.config import ExpertsConfig
from forerun.model.shapes import weight_shapes
from tests.native.models import EXPERTS


def test_every_expert_is_read_by_many_rows_and_no_more_than_the_chosen_by_one() -> None:
    for name in weight_shapes(EXPERTS):
        few, many = (share_read(name, EXPERTS, rows) for rows in (1, 1000))
        assert many == 1 or name == "embed"
        if ".expert_" in name:
            experts = EXPERTS.layer(int(name.split(".")[1])).experts
            assert experts is not None
            assert few == pytest.approx(experts.num_active / experts.num_experts)
        else:
            assert few == (1 / EXPERTS.vocab_size if name == "embed" else 1)


@pytest.mark.parametrize(("num_experts", "num_active"), [(4, 2), (5, 1), (3, 3)])
def test_expected_experts_are_the_mean_over_all_choices(num_experts: int, num_active: int) -> None:
    choices = list(itertools.combinations(range(num_experts), num_active))
    for num_rows in (1, 2, 3):
        chosen = [len(set().union(*rows)) for rows in itertools.product(choices, repeat=num_rows)]
        expected = expected_experts(ExpertsConfig(num_experts, num_active, 32), num_rows)
        assert expected == pytest.approx(sum(chosen) / len(chosen))
