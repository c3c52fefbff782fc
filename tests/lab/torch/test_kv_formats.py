"""What rounding keys and values leaves of them; the native cache is compared with these forms by decoders' tests."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.lab.torch.kv_formats import GROUP, Int8, Int8Keys, forms_of


@given(st.sampled_from([16, 48, 64, 80, 128]), st.integers(0, 2**31), st.floats(1e-6, 1e4))
def test_a_key_is_within_half_a_step_of_its_group(head_dim: int, seed: int, size: float) -> None:
    rows = size * torch.randn(5, head_dim, generator=torch.Generator().manual_seed(seed))
    error = (Int8Keys().decode(Int8Keys().encode(rows)) - rows).abs()
    for first in range(0, head_dim, GROUP):
        group = slice(first, first + GROUP)
        step = rows[:, group].abs().amax(-1, keepdim=True) / 127
        least = 2**-24  # the smallest fp16 scale
        assert (error[:, group] <= 0.51 * step + 127 * least).all()


def test_a_large_dimension_of_a_key_costs_its_own_group_only() -> None:
    """As Qwen2.5's keys have: a scale for the whole row loses the rest of it."""
    rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    rows[:, 3] += 300
    lost = {
        name: (form.decode(form.encode(rows)) - rows)[:, GROUP:].abs().max().item()
        for name, form in (("groups", Int8Keys()), ("row", Int8()))
    }
    assert lost["groups"] < 0.02 < 0.5 < lost["row"]


@pytest.mark.parametrize("kv", ["int8", "k8v4"])
def test_nothing_becomes_something(kv: str) -> None:
    keys, _ = forms_of(kv, 64)  # type: ignore[arg-type]
    assert not keys.decode(keys.encode(torch.zeros(3, 64))).any()
