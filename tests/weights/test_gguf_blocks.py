"""The native library reads and rounds blocks as the `gguf` package does."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest

from forerun.weights.codes import FORMATS
from forerun.weights.gguf_blocks import quantize
from forerun.weights.stored import StoredTensor


def numbers() -> np.ndarray:
    """Blocks of usual, large, tiny and equal numbers, of zeros, and of codes that lie halfway between two."""
    source = np.random.default_rng(0)
    sizes = np.float32([1.0, 1e30, 1e-8, 1e-20]).reshape(-1, 1, 1)
    usual = (source.standard_normal((4, 16, 96)).astype(np.float32) * sizes).reshape(-1, 96)
    halves = np.arange(-48, 48, dtype=np.float32) / 2
    halves[::32] = 127
    return np.stack([*usual, halves, np.zeros(96, np.float32), np.full(96, -3.25, np.float32)])


@pytest.mark.parametrize("form", ["q8_0", "q4_1"])
def test_rounding_gives_the_plain_bytes(form: str) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.quantize(numbers(), gguf.GGMLQuantizationType[form.upper()])
    assert np.array_equal(quantize(numbers(), FORMATS[form]), expected)


@pytest.mark.parametrize(
    ("form", "out"), [("q4_k", (2, 144)), ("q8_0", (2, 33)), ("q8_0", (1, 34))]
)
def test_other_formats_and_sizes_are_refused(form: str, out: tuple[int, int]) -> None:
    native = pytest.importorskip("forerun._native")
    values = np.zeros((2, 256 if form == "q4_k" else 32), np.float32)
    with pytest.raises(ValueError, match=r"rounded to q8_0 or q4_1|wrong shape"):
        native.round_blocks(form, values, np.zeros(out, np.uint8))


@pytest.mark.parametrize("form", ["q8_0", "q4_1"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_with_a_number_that_is_not_finite_is_nan(form: str, value: float) -> None:
    values = np.ones((1, 64), np.float32)
    values[0, 3] = value
    blocks = quantize(values, FORMATS[form])
    read = StoredTensor("w", values.shape, FORMATS[form], blocks).dequantize()[0]
    assert np.isnan(read[:32]).all()
    assert np.abs(read[32:] - 1).max() < 1e-3


@pytest.mark.parametrize("grid", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_every_point_of_a_grid_is_read(grid: str) -> None:
    """All indices, which random blocks do not reach."""
    form, dtype = FORMATS[grid.lower()], gguf.GGMLQuantizationType[grid]
    random = np.random.default_rng(0).integers(0, 256, (600, form.block_nbytes), np.uint8)
    first = random[:, :2].view(np.uint16)
    first[:] = 0x3C00
    read = StoredTensor("w", (600, 256), form, random).dequantize()
    assert np.array_equal(read, gguf.dequantize(random, dtype))
    layout = getattr(gguf.quants, grid)
    length = layout.grid_shape[1]
    assert len(np.unique(np.abs(read.reshape(-1, length)), axis=0)) >= layout.grid_shape[0]


@pytest.mark.parametrize(
    ("form", "shapes"),
    [("bf16", [(2, 64), (2, 32), (2, 1)]), ("q4_0", [(2, 17), (2, 32), (2, 1)]), ("q4_0", [(2, 18), (2, 32), (2, 2)])],
)  # fmt: skip
def test_blocks_of_other_formats_and_sizes_are_refused(
    form: str, shapes: list[tuple[int, int]]
) -> None:
    native = pytest.importorskip("forerun._native")
    rows, codes, scales = shapes
    arrays = np.zeros(rows, np.uint8), np.zeros(codes, np.uint8), np.zeros(scales, np.float32)
    with pytest.raises(ValueError, match=r"no stored blocks|wrong shape"):
        native.unpack_blocks(form, *arrays, None)
