"""Packed weights are the checkpoint's weights, and a linear layer is the integer arithmetic it claims to be."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forerun import _native
from forerun.core.arrays import Floats
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.weights.codes import E4M3, FORMATS, Codes
from forerun.weights.rtn import requantize
from forerun.weights.stored import StoredTensor
from tests.arrays import same_bits
from tests.engine.resident import resident_of
from tests.native.models import (
    FACTORS,
    GATED,
    QUANTIZED,
    TYPES,
    put_factors,
    random_weights,
    stored,
)

NUM_OUT, NUM_IN = GATED.num_heads * GATED.head_dim, 512
WIDE = replace(GATED, hidden_size=NUM_IN)
ISAS = _native.runnable_isas()


def decoder_with(weight: StoredTensor, isa: str = "auto") -> NativeDecoder:
    decoder = NativeDecoder(WIDE, num_threads=2, isa=isa)
    decoder.add("layers.0.q", weight, None)
    return decoder


def weight_of(dtype: str) -> StoredTensor:
    values = np.random.default_rng(1).standard_normal((NUM_OUT, NUM_IN))
    return stored("q", values, dtype)


def apply(decoder: NativeDecoder, x: np.ndarray) -> Floats:
    out = np.empty((len(x), NUM_OUT), np.float32)
    decoder._native.apply("layers.0.q", np.ascontiguousarray(x, np.float32), out)
    return out


def quantized(x: np.ndarray) -> np.ndarray:
    """What int8 rows with a scale per 32 stand for, in float64."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    codes = np.rint(groups * (np.float32(127) / largest))
    assert np.abs(codes).max() == 127
    return (codes.astype(np.float64) * (largest / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("dtype", TYPES)
def test_packed_weights_are_the_stored_ones(dtype: str) -> None:
    weight = weight_of(dtype)
    out = np.empty(weight.shape, np.float32)
    decoder_with(weight)._native.unpack("layers.0.q", out)
    np.testing.assert_array_equal(out, weight.dequantize())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_linear_is_exact_up_to_float_sums(dtype: str, isa: str) -> None:
    decoder = decoder_with(weight_of(dtype), isa)
    weight = np.empty((NUM_OUT, NUM_IN), np.float32)
    decoder._native.unpack("layers.0.q", weight)
    x = np.random.default_rng(2).standard_normal((5, NUM_IN)) * np.geomspace(1e-3, 1e3, NUM_IN)
    seen = quantized(x) if dtype in QUANTIZED else x.astype(np.float32).astype(np.float64)
    expected = seen @ weight.T.astype(np.float64)
    bound = np.abs(seen) @ np.abs(weight.T.astype(np.float64)) * 4e-6
    assert (np.abs(apply(decoder, x) - expected) <= bound).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_instruction_sets_agree_to_the_bit(dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((19, NUM_IN))
    results = [apply(decoder_with(weight_of(dtype), isa), x) for isa in ISAS]
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_do_not_depend_on_their_company(dtype: str) -> None:
    decoder = decoder_with(weight_of(dtype))
    x = np.random.default_rng(4).standard_normal((64, NUM_IN))
    alone = np.concatenate([apply(decoder, row[None]) for row in x])
    for count in range(1, 65):
        assert same_bits(apply(decoder, x[:count]), alone[:count])


@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_extreme_codes_do_not_overflow(dtype: str, isa: str, byte: int) -> None:
    weight = weight_of(dtype)
    blocks = weight.data.reshape(NUM_OUT, -1, weight.format.block_nbytes)
    blocks[:] = np.where(np.arange(blocks.shape[-1]) % 7 == 0, 0x7F, byte)
    ones, has_pair = np.ones(1, np.float16), weight.format.has_min or weight.format.has_zero
    first, stop = (0, 4 if has_pair else 2) if weight.format.block == 32 else FACTORS[dtype]
    if dtype == "mxfp4":
        blocks[..., 0] = 127
    elif dtype == "nvfp4":
        blocks[..., :4] = np.ones(1, np.float32).view(np.uint8)
        blocks[..., 4:6] = 0x7E
    elif dtype == "iq1_m":
        put_factors(blocks, dtype, ones)
    else:
        blocks[..., first:stop] = np.tile(ones.view(np.uint8), (stop - first) // 2)
    for sign in (1, -1):
        x = np.full((3, NUM_IN), sign * 1.0)
        decoder = decoder_with(weight, isa)
        unpacked = np.empty(weight.shape, np.float32)
        decoder._native.unpack("layers.0.q", unpacked)
        error = np.abs(apply(decoder, x) - x @ unpacked.T.astype(np.float64))
        assert (error <= 1e-5 * np.abs(x) @ np.abs(unpacked.T)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_exponents_of_mxfp4_are_not_rounded(isa: str) -> None:
    """Those that fp16 cannot hold, and that fp32 holds as subnormal numbers only."""
    weight = weight_of("mxfp4")
    weight.data[:, ::17] = np.arange(NUM_OUT)[:, None] * 2 % 240
    decoder = decoder_with(weight, isa)
    out = np.empty(weight.shape, np.float32)
    decoder._native.unpack("layers.0.q", out)
    np.testing.assert_array_equal(out, weight.dequantize())
    x = np.zeros((1, NUM_IN))
    x[0, 0] = 127.0  # scale 1
    np.testing.assert_array_equal(apply(decoder, x)[0], out[:, 0] * np.float32(127))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [16, 128, 144, NUM_IN])
def test_float8_is_summed_in_full_precision(isa: str, width: int) -> None:
    """Every e4m3 number but NaN, in groups of which the last is not whole; activations are not rounded."""
    config = replace(WIDE, hidden_size=width)
    codes = np.arange(NUM_OUT * width, dtype=np.uint32).astype(np.uint8).reshape(NUM_OUT, width)
    codes[codes & 127 == 127] = 0
    scales = np.random.default_rng(6).uniform(1e-6, 1e30, (NUM_OUT, -(-width // 128)))
    coded = Codes(codes, scales.astype(np.float32), is_float8=True)
    weight = StoredTensor("q", codes.shape, FORMATS["f8"], codes, lambda: coded)
    decoder = NativeDecoder(config, num_threads=2, isa=isa)
    decoder.add("layers.0.q", weight, None)
    out = np.empty(codes.shape, np.float32)
    decoder._native.unpack("layers.0.q", out)
    np.testing.assert_array_equal(out, weight.dequantize())
    numbers = E4M3[codes]
    assert np.array_equal(out[:, :16], numbers[:, :16] * scales.astype(np.float32)[:, :1])
    x = np.random.default_rng(7).standard_normal((11, width)).astype(np.float32)
    exact = x.astype(np.float64) @ out.T.astype(np.float64)
    bound = np.abs(x) @ np.abs(out.T) * 2e-6
    assert (np.abs(apply(decoder, x) - exact) <= bound).all()
    rows = [0, 17, NUM_OUT - 1]
    kept = decoder._native.packed("layers.0.q")[2]
    assert len(kept) == NUM_OUT * (width + 4 * scales.shape[1])
    assert [weight.rows(np.array(rows)).dequantize().tolist()] == [out[rows].tolist()]


def test_a_row_with_nan_is_nan_and_its_neighbours_are_not() -> None:
    decoder = decoder_with(weight_of("q4_1"))
    x = np.random.default_rng(5).standard_normal((6, NUM_IN))
    clean = apply(decoder, x)
    x[2, 7], x[4, 400] = np.nan, np.inf
    dirty = apply(decoder, x)
    assert np.isnan(dirty[[2, 4]]).all()
    assert same_bits(dirty[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])


def test_zero_and_tiny_rows_are_zero() -> None:
    decoder = decoder_with(weight_of("q4_1"))
    x = np.zeros((2, NUM_IN))
    x[1] = 1e-38
    assert (apply(decoder, x) == 0).all()


@pytest.mark.parametrize("form", ["q4_0", "q4_1", "q4_z", "q5_0", "q5_1", "q8_0", "q8_z"])
def test_codes_and_blocks_of_a_weight_become_the_same_tiles(form: str) -> None:
    weight = weight_of(form)
    codes = weight.codes()
    scales = np.ascontiguousarray(codes.scales)
    decoder = decoder_with(weight)
    expected = [*decoder._native.packed("layers.0.q")[2].tobytes()]
    mins = codes.mins if codes.zeros is None else -codes.zeros
    decoder._native.set_codes("layers.0.q", form, codes.codes, scales, mins, None)
    assert [*decoder._native.packed("layers.0.q")[2].tobytes()] == expected


def test_groups_of_codes_may_be_wider_than_those_of_tiles() -> None:
    random = np.random.default_rng(6)
    codes = random.integers(0, 16, (NUM_OUT, NUM_IN)).astype(np.int8)
    scales, mins = random.uniform(-2, 2, (2, NUM_OUT, NUM_IN // 128)).astype("f2").astype("f4")
    decoder = NativeDecoder(WIDE, num_threads=2)
    decoder._native.set_codes("layers.0.q", "q4_1", codes, scales, mins, None)
    out = np.empty((NUM_OUT, NUM_IN), np.float32)
    decoder._native.unpack("layers.0.q", out)
    np.testing.assert_array_equal(out, Codes(codes, scales, mins).values())


@pytest.mark.parametrize(
    ("form", "num_groups", "has_min", "complaint"),
    [
        ("q4_0", 16, True, "no tiles for such codes"),
        ("q4_1", 16, False, "no tiles for such codes"),
        ("q4_z", 16, False, "no tiles for such codes"),
        ("q4_k", 16, True, "no tiles for such codes"),
        ("q6_k", 32, False, "no tiles for such codes"),
        ("iq4_nl", 16, False, "no tiles for such codes"),
        ("mxfp4", 16, False, "no tiles for such codes"),
        ("f16", 16, False, "no tiles for such codes"),
        ("q4_0", 32, False, "multiples of 32"),
        ("q4_0", 15, False, "must be .outputs, groups."),
    ],
)
def test_codes_without_tiles_are_refused(
    form: str, num_groups: int, has_min: bool, complaint: str
) -> None:
    codes, scales = np.zeros((NUM_OUT, NUM_IN), np.int8), np.ones((NUM_OUT, num_groups), "f4")
    native = NativeDecoder(WIDE, num_threads=1)._native
    with pytest.raises(ValueError, match=complaint):
        native.set_codes("layers.0.q", form, codes, scales, scales if has_min else None, None)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_head_bits_round_the_head_alone(bits: int, is_tied: bool) -> None:
    config = replace(GATED, tied_head=is_tied)
    weights = random_weights(config, "q8_0")
    source = "embed" if is_tied else "head"
    rounded = requantize(weights[source], bits)
    decoder = load_native(config, weights, head_bits=bits)
    for name, expected in (("head", rounded), ("embed", weights["embed"])):
        out = np.empty(expected.shape, np.float32)
        decoder._native.unpack(name, out)
        np.testing.assert_array_equal(out, expected.dequantize())


def test_no_page_stays_between_small_weights_that_are_dropped() -> None:
    """The system would fill the huge page around it."""
    if not Path("/proc/self/pagemap").exists():
        pytest.skip("measured on Linux")
    values = np.random.default_rng(1).standard_normal((NUM_OUT, NUM_IN))
    weight, page = stored("q", values, "f32"), 2 << 20
    decoders, taken, last = [], 0, None
    while taken < 4 * page:  # in one mapping, side by side
        decoder = decoder_with(weight)
        memory = decoder.native.packed("layers.0.q")[2]
        if last is None or memory.ctypes.data != last.ctypes.data + last.nbytes:
            decoders, taken = [], 0
        decoders.append(decoder)
        taken, last = taken + memory.nbytes, memory
    stop = last.ctypes.data // page * page
    start = -(-(last.ctypes.data + last.nbytes - taken) // page) * page
    assert resident_of(start, stop - start) == stop - start >= 2 * page
    kept = decoders[-1]
    del decoders, decoder, memory
    gc.collect()
    assert resident_of(start, stop - start) == 0
    assert kept.native.packed("layers.0.q")[2].any()


def test_peak_counts_its_multiplications() -> None:
    for is_float in (False, True):
        assert _native.peak("auto", 3, is_float) == 3 * _native.peak("auto", 1, is_float) > 0
    with pytest.raises(ValueError, match="negative"):
        _native.peak("auto", -1)


@pytest.mark.parametrize(
    ("name", "form", "num_in", "complaint"),
    [
        ("q", "q1_0", 512, "weight format 'q1_0' has no kernel"),
        ("q", "q8_0", 48, "width 48 is not"),
        ("q", "q4_k", 96, "width 96 is not a multiple of 256"),
        ("q", "q8_0", 96, r"layers\.0\.q is \(16, 96\), expected \(128, 512\)"),
        ("w", "q8_0", 64, r"no weight is called layers\.0\.w"),
        ("attn_norm", "q8_0", 512, "is a norm"),
    ],
)
def test_room_for_what_has_no_tiles_is_refused(
    name: str, form: str, num_in: int, complaint: str
) -> None:
    decoder = NativeDecoder(WIDE, num_threads=1)
    with pytest.raises(ValueError, match=complaint):
        decoder.add_blank(f"layers.0.{name}", form, (16, num_in), False)
