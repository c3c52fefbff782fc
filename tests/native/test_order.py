"""Columns in an order of their own (GPTQ's act-order): the kernels read rows in it, on the grid of the file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun import _native
from forerun.core.errors import LoadError
from forerun.model.backends.native import NativeDecoder
from forerun.model.backends.native import load as load_native
from forerun.model.shapes import weight_shapes
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.stored import StoredTensor
from tests.arrays import cosine, same_bits
from tests.native.models import EXPERTS, GATED, HYBRID, prefill, random_weights, reference, text

CONFIG = replace(GATED, hidden_size=128, intermediate_size=192, num_heads=4)
READERS = {"q": 1, "k": 1, "v": 1, "o": 2, "gate": 3, "up": 3, "down": 4}
"""Matrices, and what their orders are drawn from."""


def ordered(name: str, shape: tuple[int, int], seed: int, form: str = "q4_z") -> StoredTensor:
    random, group = np.random.default_rng(seed), 32
    groups = random.permutation(np.arange(shape[1]) // group).astype(np.int32)
    random = np.random.default_rng(seed + 100 * shape[0])
    codes = random.integers(0, 16, shape).astype(np.int8)
    scales = random.uniform(0.01, 0.02, (shape[0], shape[1] // group)).astype("f2").astype("f4")
    zeros = random.integers(6, 10, scales.shape).astype(np.float32)
    coded = Codes(codes, scales, zeros=zeros, groups=groups)
    return StoredTensor(name, shape, FORMATS[form], codes.view(np.uint8), lambda: coded)


def weights_of(config=CONFIG, seeds=READERS) -> dict[str, StoredTensor]:
    weights = random_weights(config, "q8_0")
    for name, shape in weight_shapes(config).items():
        short = name.rpartition(".")[2]
        if name.startswith("layers.") and short in seeds:
            weights[name] = ordered(name, shape, seeds[short])
    return weights


@pytest.mark.parametrize("isa", _native.runnable_isas())
def test_a_layer_reads_rows_in_its_order(isa: str) -> None:
    weight = ordered("q", (128, 128), 1)
    decoder = NativeDecoder(CONFIG, num_threads=2, isa=isa)
    decoder.add("layers.0.q", weight, None)
    form, _, memory, _ = decoder._native.packed("layers.0.q")
    assert (form, len(memory)) == ("q4_z", 128 * 128 * 5 // 8)
    values = np.empty(weight.shape, np.float32)
    decoder._native.unpack("layers.0.q", values)
    np.testing.assert_array_equal(values, weight.dequantize())
    x = np.random.default_rng(2).standard_normal((19, 128)).astype(np.float32)
    out = np.empty((19, 128), np.float32)
    decoder._native.apply("layers.0.q", x, out)
    order = weight.codes().order
    assert order is not None
    plain = replace(weight.codes(), codes=weight.codes().codes[:, order], groups=None)
    straight = NativeDecoder(CONFIG, num_threads=1, isa=isa)
    straight.add("layers.0.q", replace(weight, read=lambda: plain), None)
    expected = np.empty_like(out)
    straight._native.apply("layers.0.q", np.ascontiguousarray(x[:, order]), expected)
    assert same_bits(out, expected), "as if the columns of rows lay so"


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_model_with_orders_computes_what_the_reference_does(num_threads: int) -> None:
    weights = weights_of()
    decoder = load_native(CONFIG, weights.items(), num_threads=num_threads)
    assert {form for name, form, *_ in decoder.packed() if name[-2:] in (".q", ".o", "wn")} == {
        "q4_z"
    }
    tokens = text(40)
    whole = prefill(decoder, tokens)
    assert cosine(whole, prefill(reference(CONFIG, weights), tokens)).min() > 0.999
    one = load_native(CONFIG, weights.items(), num_threads=1)
    assert same_bits(whole[:7], prefill(one, tokens[:7]))


def test_orders_that_rows_cannot_have_become_fp16() -> None:
    """Of q and k apart; of an MLP beside experts, of the output of a recurrent layer."""
    cases = (
        (CONFIG, READERS | {"k": 9}, {"k"}),
        (EXPERTS, {"gate": 1, "up": 1}, {"gate", "up"}),
        (HYBRID, {"o": 1}, {"o"}),
    )
    for config, seeds, halves in cases:
        weights = weights_of(config, seeds)
        decoder = load_native(config, weights.items(), num_threads=1)
        forms: dict[str, set[str]] = {}
        for name, form, *_ in decoder.packed():
            if name.startswith("layers."):
                forms.setdefault(name.rpartition(".")[2], set()).add(str(form))
        assert {name for name in seeds if "f16" in forms[name]} == halves
        assert (
            cosine(prefill(decoder, text(9)), prefill(reference(config, weights), text(9))).mean()
            > 0.99
        )


def test_orders_that_are_none_are_refused() -> None:
    native = NativeDecoder(CONFIG, num_threads=1)._native
    codes, ones = np.zeros((128, 128), np.int8), np.ones((128, 4), np.float32)
    for order, complaint in (
        (np.zeros(128, np.int32), "every column once"),
        (np.arange(1, 129, dtype=np.int32), "every column once"),
        (np.arange(64, dtype=np.int32), "must name every column"),
    ):
        with pytest.raises(ValueError, match=complaint):
            native.set_codes("layers.0.q", "q4_0", codes, ones, None, None, order)
    order = np.arange(128, dtype=np.int32)
    with pytest.raises(ValueError, match="embed cannot read columns in another order"):
        native.set_codes(
            "embed", "q4_0", np.zeros((77, 128), np.int8), np.ones((77, 4), "f4"), None, None, order
        )
    with pytest.raises(LoadError, match="cut"):
        ordered("q", (128, 128), 1).codes().columns("q", 0, 64)
    cut = ordered("q", (128, 128), 1).columns(32, 96)
    assert cut.format.name == "f16"
    whole = ordered("q", (128, 128), 1).dequantize().astype(np.float16)
    np.testing.assert_array_equal(cut.dequantize(), whole[:, 32:96].astype(np.float32))
