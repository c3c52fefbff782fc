"""Grids round to the nearest code; AWQ's searches lower the error on a layer's own inputs, never raise it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.errors import ConfigError
from forerun.lab.quantize.awq import CLIPS, Inputs, clipped, search_scales
from forerun.lab.quantize.gptq import Feedback, compensated
from forerun.lab.quantize.grid import Grid, coded, grid_for


def inputs_of(x: torch.Tensor) -> Inputs:
    return Inputs(len(x), x.abs().mean(0), x.T @ x / len(x), x.abs().amax(0), x)


def sample(seed: int, num_out: int = 24, num_in: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and inputs of which one channel in sixteen is large."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(200, num_in, generator=random)
    x[:, ::16] *= 30
    return torch.randn(num_out, num_in, generator=random), x


def test_codes_of_a_hand_computed_group() -> None:
    weight = torch.linspace(-0.5, 1.0, 16).repeat(2)[None]  # steps of 0.1: 15 codes, zero at 5
    coded = Grid(4, 32).round(weight)
    assert coded.scales.item() == torch.tensor(0.1).half().item()
    assert coded.zeros.item() == 5
    assert coded.codes[0].tolist() == [*range(16)] * 2
    eight = Grid(8, None).round(torch.tensor([[-1.27, 0.0, 0.635, 1.27]]))
    assert (eight.zeros.item(), eight.codes[0].tolist()) == (128, [1, 128, 191, 255])


@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_no_weight_is_further_than_half_a_step(bits: int, group: int | None) -> None:
    weight, _ = sample(0)
    coded = Grid(bits, group).round(weight)
    scales, values = (torch.from_numpy(part) for part in (coded.scales, coded.values()))
    steps = scales.repeat_interleave(group or 64, dim=1)
    # A zero point is whole, so a group's end may be half a step out of range, too.
    assert ((values - weight).abs() <= steps * 1.01).all()
    assert ((values - weight).abs().mean() < steps.mean() / 2).item()
    assert coded.codes.max() < 1 << bits
    assert torch.equal(scales, scales.half().float())


def test_the_error_is_that_of_the_outputs() -> None:
    weight, x = sample(1)
    difference = Grid(3, 32).nearest(weight) - weight
    expected = (x @ difference.T).square().mean(0).sum().item()
    assert inputs_of(x).error(difference) == pytest.approx(expected, rel=1e-4)
    x, scales = x.double(), torch.rand(64).double() + 0.5
    divided = inputs_of(x / scales)
    torch.testing.assert_close(inputs_of(x).divided(scales).gram, divided.gram)
    torch.testing.assert_close(inputs_of(x).divided(scales).magnitude, divided.magnitude)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([3, 4]))
def test_scales_never_raise_the_error(seed: int, bits: int) -> None:
    weight, x = sample(seed)
    grid, inputs = Grid(bits, 32), inputs_of(x)
    plain = inputs.error(grid.nearest(weight) - weight)
    scales = search_scales([weight[:8], weight[8:]], inputs, grid)
    scaled = inputs.error(grid.nearest(weight * scales) / scales - weight)
    assert scaled < plain / 2, "large channels are protected"


@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("bits", [3, 4])
def test_a_group_is_cut_where_its_own_share_of_the_outputs_errs_least(
    bits: int, group: int | None
) -> None:
    weight, x = sample(3)
    weight[:, ::7] *= 4
    grid, inputs = Grid(bits, group), inputs_of(x)
    cut = clipped(weight, inputs, grid)
    width = group or 64
    for start in range(0, 64, width):
        part = slice(start, start + width)
        seen, whole, alone = x[:, part], weight[:, part], Grid(bits, None)
        largest = whole.abs().amax(-1, keepdim=True)
        tried = [whole.clamp(-largest * share, largest * share) for share in CLIPS]
        errors = torch.stack(
            [(seen @ (alone.nearest(each) - whole).T).square().mean(0) for each in tried]
        )
        best = torch.stack(tried)[errors.argmin(0), torch.arange(len(weight))]
        torch.testing.assert_close(cut[:, part], best)
        assert (errors.argmin(0) > 0).any(), "something is cut"


def test_rounding_does_not_shrink_what_a_matrix_says() -> None:
    """Ranges cut to where the error is least do: in every layer alike, where errors of both signs cancel."""
    grid, shares_kept = Grid(4, 128), []
    for seed in range(8):
        weight, x = sample(seed, 256, 256)
        scales = search_scales([weight], inputs_of(x), grid)
        steps, zeros = grid.ranges(weight * scales)
        feedback = Feedback.of(inputs_of(x / scales).gram, len(x))
        codes = compensated(weight * scales, feedback, steps, zeros, (0, grid.top))
        whole = torch.from_numpy(coded(codes, steps, zeros).values())
        nearest = grid.nearest(weight * scales)
        exact = x @ weight.T
        for values in (grid.nearest(weight), nearest / scales, whole / scales):
            shares_kept.append(float((x @ values.T * exact).sum() / exact.square().sum()))
    for shares in (shares_kept[::3], shares_kept[1::3], shares_kept[2::3]):
        assert sum(shares) / len(shares) == pytest.approx(1.0, abs=0.0015)


@pytest.mark.parametrize(
    ("bits", "group", "message"),
    [
        (5, None, "--bits is 5, but must be one of 3, 4, 8"),
        (4, "128", r"groups of 128 do not divide all widths of this model \(64, 96\): give"),
        (4, "48", "--group is '48', but must be 32, 64, 128 or channel"),
    ],
)
def test_grids_that_do_not_fit_are_refused(bits: int, group: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid_for(bits, group, {64, 96})


def test_the_default_group_is_the_largest_that_divides_all_widths() -> None:
    assert grid_for(4, None, {256, 384}) == Grid(4, 128)
    assert grid_for(4, None, {64, 96}) == Grid(4, 32)
    assert grid_for(4, "channel", {50}) == Grid(4, None)
    with pytest.raises(ConfigError, match="no group divides"):
        grid_for(4, None, {50})
