"""Experts' tensors as one matrix: rows below each other, on the grid on which they were stored."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from forerun.core.errors import LoadError
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.stored import StoredTensor, stacked
from tests.arrays import assert_close

RANDOM = np.random.default_rng(0)


def plain(shape: tuple[int, ...]) -> StoredTensor:
    values = RANDOM.standard_normal(shape).astype(np.float32)
    rows = values.reshape(shape[0] if len(shape) > 1 else 1, -1)
    return StoredTensor("x", shape, FORMATS["f32"], rows.view(np.uint8))


def eight_bits(num_rows: int) -> StoredTensor:
    values = RANDOM.standard_normal((num_rows, 64)).astype(np.float32)
    return StoredTensor("x", (num_rows, 64), FORMATS["q8_0"], gguf.quantize(values, Type.Q8_0))


def coded(num_rows: int, groups: np.ndarray | None = None) -> StoredTensor:
    """As GPTQ has it: codes with zero points, columns in an order of their own if asked for."""
    codes = RANDOM.integers(0, 16, (num_rows, 64)).astype(np.uint8)
    scales = RANDOM.uniform(0.5, 1, (num_rows, 2)).astype(np.float16).astype(np.float32)
    zeros = RANDOM.integers(0, 16, (num_rows, 2)).astype(np.float32)
    whole = Codes(codes, scales, zeros=zeros, groups=groups)
    format = FORMATS["q4_z" if groups is None else "f16"]
    return StoredTensor("x", (num_rows, 64), format, codes, lambda: whole)


ORDERED = np.tile(np.array([1, 0], np.int32), 32)


@pytest.mark.parametrize(
    "parts",
    [
        [plain((3, 8)), plain((2, 8))],
        [plain((3,)), plain((4,))],
        [eight_bits(3), eight_bits(2)],
        [coded(3), coded(2)],
        [coded(3), coded(2).rows(np.array([1, 0]))],
        [coded(3, ORDERED), coded(2, ORDERED)],
    ],
    ids=["floats", "vectors", "q8_0", "codes", "some rows", "columns in an order"],
)
def test_stacking_keeps_every_number(parts: list[StoredTensor]) -> None:
    whole = stacked(parts)
    expected = np.concatenate([part.dequantize() for part in parts])
    exact = 0.0 if parts[0].read is None or parts[0].format.name != "f16" else 1e-3
    assert_close(whole.dequantize(), expected, rtol=exact, atol=exact)
    assert whole.format.name == parts[0].format.name
    if len(whole.shape) > 1:
        index = np.array([4, 0, 2])
        assert_close(whole.rows(index).dequantize(), expected[index], rtol=exact, atol=exact)


def test_formats_that_differ_are_refused() -> None:
    with pytest.raises(LoadError, match="'x' and those like it are stored as f32, q8_0"):
        stacked([plain((3, 64)), eight_bits(2)])


def test_a_tensor_of_experts_is_their_rows() -> None:
    whole = plain((3, 4, 8))
    values = whole.dequantize()
    assert np.array_equal(whole.merged().dequantize(), values.reshape(12, 8))
    biases = plain((3, 4))
    assert np.array_equal(biases.merged().dequantize(), biases.dequantize().reshape(-1))
    assert biases.merged().shape == (12,)
    assert np.array_equal(whole.transposed().dequantize(), values.swapaxes(-1, -2))
    assert np.array_equal(
        whole.transposed().merged().dequantize(), values.swapaxes(-1, -2).reshape(24, 4)
    )
    with pytest.raises(LoadError, match="stored as q8_0, and transposed"):
        eight_bits(3).transposed()
