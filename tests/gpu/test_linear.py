"""A matrix of any format multiplies rows as the CPU's kernels do, to the bit, whatever the shape of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.gpu.codes import FLOATS, LAYOUTS
from forerun.gpu.layers import put_norm
from forerun.gpu.matrices import ROWS, Rows, Stack
from forerun.model.backends.native import NativeDecoder
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.stored import StoredTensor
from tests.gpu.oracle import DEVICE, same
from tests.native.models import GATED, stored

OUTPUTS = 80
RANDOM = np.random.default_rng(0)


def grouped(form: str, group: int) -> StoredTensor:
    """A matrix of a folder, as AWQ, GPTQ and compressed-tensors have them: one scale for `group` inputs."""
    shape, numbers = (OUTPUTS, 256), (OUTPUTS, 256 // group)
    low, high = (0, 16) if form == "q4_z" else (-8, 8) if form == "q4_0" else (-128, 128)
    codes = RANDOM.integers(low, high, shape).astype(np.int8)
    zeros = RANDOM.integers(0, 16, numbers).astype(np.float32) if form.endswith("_z") else None
    coded = Codes(codes, RANDOM.uniform(0.001, 0.1, numbers).astype(np.float32), zeros=zeros)
    return StoredTensor(form, shape, FORMATS[form], codes.view(np.uint8), lambda: coded)


def matrix_of(form: str) -> StoredTensor:
    name, _, group = form.partition(" by ")
    if group:
        return grouped(name, int(group))
    width = 512 if FORMATS[name].block == 256 else 96  # an odd number of groups
    return stored("w", RANDOM.standard_normal((OUTPUTS, width)) / 4, name)


def check(stored: StoredTensor, widths: tuple[int, ...], *, num_rows: int = 5) -> None:
    """Rows of very different sizes, with a bias, stored; then added."""
    num_in = stored.shape[1]
    sizes = 10 ** RANDOM.uniform(-3, 3, (num_rows, 1))
    x = (RANDOM.standard_normal((num_rows, num_in)) * sizes).astype(np.float32)
    bias = RANDOM.standard_normal(OUTPUTS).astype(np.float32)
    offset = StoredTensor("b", (OUTPUTS,), FORMATS["f32"], bias.view(np.uint8).reshape(1, -1))
    config = replace(GATED, hidden_size=num_in, num_heads=OUTPUTS // 16, head_dim=16, rope=None)
    native = NativeDecoder(replace(config, num_kv_heads=1), num_threads=1)
    native.add("layers.0.q", stored, offset)
    expected = np.empty((num_rows, OUTPUTS), np.float32)
    native.native.apply("layers.0.q", x, expected)
    made = Stack.pack([(stored, offset)], torch.device(DEVICE))
    rows = Rows.of_width(num_in, DEVICE)
    rows.floats[:num_rows] = torch.from_numpy(x)
    put_norm(rows.floats, None, config, num_rows, to=rows, readers=(made,))
    for width in widths:
        out = torch.full((ROWS, OUTPUTS), torch.nan, device=DEVICE)
        made.parts[0].multiply(rows, num_rows, out, block=width)
        assert same(out[:num_rows].cpu().numpy(), expected), (stored.format.name, width)
    ids = np.array([0, 17, 16, OUTPUTS - 1])
    some = made.parts[0].outputs(torch.from_numpy(ids).to(DEVICE))
    out = torch.zeros(ROWS, len(ids), device=DEVICE)
    some.multiply(rows, num_rows, out)
    assert same(out[:num_rows].cpu().numpy(), expected[:, ids])
    assert some.nbytes() == made.nbytes() * len(ids) // OUTPUTS
    before = torch.from_numpy(RANDOM.standard_normal((ROWS, OUTPUTS)).astype(np.float32)).to(DEVICE)
    added = before.clone()
    made.multiply(rows, num_rows, added, adds=True, multiplier=1.0)
    assert same(added[:num_rows].cpu().numpy(), before[:num_rows].cpu().numpy() + expected)


FOLDERS = ("q4_z by 128", "q4_0 by 128", "q8_0 by 256", "q8_z by 64", "q4_0 by 256")


@pytest.mark.parametrize("form", [*LAYOUTS, *FLOATS, *FOLDERS])
def test_a_matrix_has_the_bits_of_the_cpu(form: str) -> None:
    check(matrix_of(form), (16, 64, 128))


def test_many_rows_are_as_few() -> None:
    """In tiles of 64 rows, the last not full."""
    check(matrix_of("q4_1"), (64,), num_rows=70)
    check(matrix_of("bf16"), (64,), num_rows=17)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_with_nan_and_infinity_give_nan_and_others_do_not() -> None:
    config, made = GATED, Stack.pack([(matrix_of("q4_0"), None)], torch.device(DEVICE))
    rows = Rows.of_width(96, DEVICE)
    rows.floats[:3] = 1.0
    rows.floats[0, 5], rows.floats[2, 50] = torch.nan, torch.inf
    put_norm(rows.floats, None, config, 3, to=rows, readers=(made,))
    out = torch.zeros(ROWS, OUTPUTS, device=DEVICE)
    made.multiply(rows, 3, out)
    assert out[:3].isnan().all(1).tolist() == [True, False, True]
