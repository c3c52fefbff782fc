"""Round to nearest keeps what it must keep and loses no more than half a step."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.core.errors import ConfigError
from forerun.weights.codes import FORMATS
from forerun.weights.rtn import quantize_weight, requantize
from forerun.weights.stored import StoredTensor


def matrix(name: str = "layers.0.q", shape: tuple[int, ...] = (48, 64)) -> StoredTensor:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return StoredTensor(name, shape, FORMATS["f32"], values.reshape(shape[0], -1).view(np.uint8))


def relative_error(before: StoredTensor, after: StoredTensor) -> float:
    """Root mean square of what quantization changed, relative to that of the weights."""
    was, now = before.dequantize(), after.dequantize()
    return float(np.sqrt(np.square(was - now).mean() / np.square(was).mean()))


def quantized(stored: StoredTensor, scheme: str) -> StoredTensor:
    return quantize_weight(stored.name, stored, scheme)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scheme", "dtype", "levels"), [("int8", "q8_0", 254), ("int4", "q4_1", 15)]
)
def test_the_error_is_at_most_half_a_step(scheme: str, dtype: str, levels: int) -> None:
    before = matrix()
    after = quantized(before, scheme)
    assert (after.format.name, after.shape) == (dtype, before.shape)
    groups = before.dequantize().reshape(-1, 32)
    span = np.ptp(groups, axis=1) if scheme == "int4" else 2 * np.abs(groups).max(1)
    changed = np.abs(after.dequantize().reshape(-1, 32) - groups).max(1)
    assert (changed <= span / levels * 0.5 + span * 2e-3).all()  # scales are rounded to fp16
    assert 0 < relative_error(before, after) < (0.01 if scheme == "int8" else 0.11)


def test_what_takes_no_more_bits_or_has_no_blocks_stays() -> None:
    four = quantized(matrix(), "int4")
    assert quantized(four, "int8") is four
    assert quantized(four, "int4") is four
    for shape in ((64,), (4, 48)):
        stays = matrix(shape=shape)
        assert quantized(stays, "int4") is stays
    assert quantized(matrix(), "none").format.name == "f32"


def test_what_takes_more_bits_is_rounded_again() -> None:
    eight = quantized(matrix(), "int8")
    four = quantized(eight, "int4")
    assert four.format.name == "q4_1"
    assert 0 < relative_error(eight, four) < 0.11


def test_head_and_embedding_keep_eight_bits_and_routers_all() -> None:
    names = ["embed", "positions", "layers.0.q", "layers.0.router", "layers.0.expert_up", "head"]
    types = [quantized(matrix(name), "int4").format.name for name in names]
    assert types == ["q8_0", "f32", "q4_1", "f32", "q4_1", "q8_0"]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'int4'"):
        quantized(matrix(), "int-4")


def test_requantizing_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = quantized(matrix(), "int8")
    four = requantize(eight, 4)
    assert (four.format.name, four.shape) == ("q4_1", eight.shape)
    assert 0 < relative_error(eight, four) < 0.11
    monkeypatch.setattr("forerun.weights.rtn._ROWS_AT_A_TIME", 7)
    assert np.array_equal(requantize(eight, 4).data, four.data)
    with pytest.raises(ConfigError, match="number of bits '3'"):
        requantize(eight, 3)
    with pytest.raises(ConfigError, match="blocks of 32"):
        requantize(matrix(shape=(4, 48)), 4)
