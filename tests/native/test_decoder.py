"""The native decoder computes what the torch decoder computes, and everything a KV cache promises."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import CapacityError, ConfigError, LoadError
from forerun.model.backends.native import NativeDecoder, unsupported
from forerun.model.backends.native import load as load_native
from forerun.model.cache.native import NativeCache
from forerun.model.config import RopeConfig
from forerun.model.model import Model
from forerun.weights.codes import WeightFormat
from tests.arrays import assert_close, cosine, same_bits
from tests.native.models import (
    AFTER,
    EXPERTS,
    GATED,
    LATENT,
    LATENTS,
    PER_LAYER,
    QUANTIZED,
    SANDWICH,
    SINKS,
    STREAMS,
    VOCAB,
    logits_of,
    native,
    prefill,
    random_weights,
    reference,
    stored,
    text,
)

PLAIN = replace(
    GATED, norm="layer", gated_mlp=False, rope=None, learned_position_offset=2, activation="relu"
)
VARIANTS = {
    "gated": GATED,
    "plain": PLAIN,
    "gelu": replace(PLAIN, activation="gelu", tied_head=True),
    "gelu_tanh": replace(PLAIN, activation="gelu_tanh", num_kv_heads=1),
    "window": replace(GATED, sliding_window=37, qk_norm="head"),
    "sandwich": SANDWICH,
    "after": AFTER,
    "experts": EXPERTS,
    "latent": LATENT,
    "latents": LATENTS,
    "sinks": SINKS,
    "per layer": PER_LAYER,
    "streams": STREAMS,
    "multipliers": replace(
        GATED,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_scale=0.2,
        logits_divisor=2.5,
        tied_head=True,
    ),
    "narrow": replace(
        GATED, hidden_size=48, intermediate_size=80, head_dim=16, rope=RopeConfig(1e4, 8)
    ),
    "many heads": replace(GATED, num_heads=26, num_kv_heads=2, head_dim=16, rope=None),
    "rope factors": replace(
        GATED, rope=RopeConfig(1e4, 32, tuple(1.0 + i for i in range(16)), attention_factor=1.2)
    ),
}
TREE = (-1, 0, 0, 1, 2, 2, 5, -1, 7)


def run(model: Model, kv: Precision = "auto") -> Floats:
    """Logits of a prefill, of a tree above it, and of the tokens after a kept path."""
    cache = model.new_cache(1, 256, kv)
    rows = [logits_of(model, cache, Segment(0, 0, text(150)))]
    cache.keep(0, range(150))
    rows.append(logits_of(model, cache, Segment(0, 150, text(9, seed=1), TREE)))
    cache.keep(0, [0, 2, 5, 6])
    rows.append(logits_of(model, cache, Segment(0, 154, text(3, seed=2))))
    return np.concatenate(rows)


@pytest.mark.parametrize("kind", sorted(VARIANTS))
@pytest.mark.parametrize("has_biases", [False, True])
def test_logits_equal_the_torch_decoders(kind: str, has_biases: bool) -> None:
    config = VARIANTS[kind]
    weights = random_weights(config, has_biases=has_biases)
    model = load_native(config, weights, num_threads=2)
    expected = run(reference(config, weights))
    assert_close(run(model, "fp32"), expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_quantized_logits_are_near_the_torch_decoders(dtype: str) -> None:
    config = replace(GATED, hidden_size=256, intermediate_size=256, num_heads=8)
    weights = random_weights(config, dtype)
    model = load_native(config, weights, num_threads=2)
    ours, theirs = run(model), run(reference(config, weights))
    similarity = cosine(ours, theirs)
    assert similarity.mean() > 0.99, similarity  # sharp random attention makes single rows swing


def test_half_precision_cache_is_near_the_full_one() -> None:
    weights = random_weights(GATED)
    for model in (load_native(GATED, weights, num_threads=1), reference(GATED, weights)):
        half, full = run(model, "fp16"), run(model, "fp32")
        assert not np.array_equal(half, full)
        assert cosine(half, full).min() > 0.999


@pytest.mark.parametrize(("kv", "similar"), [("int8", 0.998), ("k8v4", 0.97), ("int4", 0.9)])
def test_coded_keys_and_values_are_those_of_the_torch_decoder(
    kv: Precision, similar: float
) -> None:
    weights = random_weights(GATED)
    models = load_native(GATED, weights, num_threads=1), reference(GATED, weights)
    ours, theirs = (run(model, kv) for model in models)
    # A number between two codes may fall to either side; the weights of int8 values become codes here alone.
    assert cosine(ours, theirs).min() > (0.995 if kv == "int8" else 0.999)
    assert cosine(ours, theirs).mean() > 0.9995
    full = cosine(ours, run(models[1], "fp32"))
    assert full.mean() > similar
    assert not np.array_equal(ours, run(models[0], "fp16"))


def test_int4_needs_whole_groups() -> None:
    config = replace(GATED, head_dim=48, rope=None)
    for model in (
        load_native(config, random_weights(config)),
        reference(config, random_weights(config)),
    ):
        for kv, what in (("int4", "int4 keys and values"), ("k8v4", "int4 values")):
            with pytest.raises(
                ConfigError,
                match=f"^{what} need heads of a multiple of 32 dimensions, 512 at most, this model has 48: take int8",
            ):
                model.new_cache(1, 64, kv)


@pytest.mark.parametrize("kv", ["int4", "k8v4"])
def test_int4_has_a_widest_head(kv: Precision) -> None:
    widest, wider = (replace(GATED, head_dim=dim, rope=None) for dim in (512, 544))
    weights = random_weights(widest)
    ours, theirs = (run(load(widest, weights), kv) for load in (load_native, reference))
    assert cosine(ours, theirs).min() > 0.99
    for model in (
        load_native(wider, random_weights(wider)),
        reference(wider, random_weights(wider)),
    ):
        with pytest.raises(ConfigError, match="512 at most, this model has 544: take int8"):
            model.new_cache(1, 64, kv)


def test_aux_hidden_states_are_the_layers_outputs_in_the_order_asked() -> None:
    weights = random_weights(GATED)
    model = load_native(GATED, weights)
    torch_model = reference(GATED, weights)
    batch = Batch((Segment(0, 0, text(300)),))
    ours = model.forward(batch, model.new_cache(1, 512, "fp32"), aux_layers=(1, 0)).aux
    theirs = torch_model.forward(batch, torch_model.new_cache(1, 512), aux_layers=(0, 1)).aux
    assert_close(ours, theirs[::-1], rtol=1e-2, atol=1e-2)


def test_loading_counts_its_bytes() -> None:
    small, large = native(GATED, "q4_0"), native(GATED, "f32")
    assert 0 < small.nbytes() < large.nbytes() / 3


# --- what is wrong is refused, in a sentence ---


def test_a_pass_beyond_cache_or_context_is_refused() -> None:
    model = native(GATED)
    with pytest.raises(CapacityError, match="do not fit a cache"):
        prefill(model, text(41), max_len=40)
    with pytest.raises(CapacityError, match="context"):
        prefill(model, text(513), max_len=600)


@pytest.mark.parametrize(
    ("segment", "complaint"),
    [
        (Segment(3, 0, (1,)), "slot 3"),
        (Segment(-1, 0, (1,)), "slot -1"),
        (Segment(0, -1, (1,)), "outside"),
        (Segment(0, 0, (VOCAB,)), f"token id {VOCAB}"),
        (Segment(0, 0, (-1,)), "token id -1"),
        (Segment(0, 0, (1, 2), (0, -1)), "parents"),
        (Segment(0, 0, (1, 2), (-1, 1)), "parents"),
        (Segment(0, 0, (1, 2), first=0, stop=3), "outside its tokens"),
    ],
)
def test_impossible_segments_are_refused(segment: Segment, complaint: str) -> None:
    model = native(GATED)
    cache = model.new_cache(1, 40)
    assert cache.reserve(0, 40)
    hidden, aux = (
        np.empty((segment.num_rows, GATED.hidden_size), np.float32),
        np.empty((0, 0, 0), np.float32),
    )
    with pytest.raises(ValueError, match=complaint):
        model._native.forward(cache.native, [segment], None, hidden, [], aux)


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    model = native(GATED)
    with pytest.raises(ValueError, match="hidden size"):
        model.head(np.zeros((2, GATED.hidden_size + 1), np.float32))
    with pytest.raises(TypeError):
        model._native.head(np.zeros((2, 64)), np.zeros((2, VOCAB), np.float32))
    with pytest.raises(TypeError):
        model._native.head(np.zeros((64, 2), np.float32).T, np.zeros((2, VOCAB), np.float32))
    cache = model.new_cache(1, 40)
    for rows, start in (([40], 0), ([1], 2), ([0], -1), ([1, 1], 1)):
        with pytest.raises(ValueError, match="move down"):
            cache.native.move(0, rows, start)
    with pytest.raises(ValueError, match="positive"):
        NativeCache(GATED, num_slots=0, max_len=10, num_blocks=1)
    with pytest.raises(ValueError, match="absurdly"):
        NativeCache(replace(GATED, num_layers=1 << 14), 1 << 20, 1 << 20, num_blocks=1 << 14)
    large = replace(GATED, num_layers=1 << 14)
    num_blocks = round(5e14 / NativeCache(large, 1, 64).block_nbytes)
    with pytest.raises(CapacityError, match=f"refuses the memory for {num_blocks} blocks"):
        NativeCache(large, 1, 64, num_blocks=num_blocks)


def test_wrong_weights_are_refused_by_name() -> None:
    weights = random_weights(GATED)
    missing = {name: w for name, w in weights.items() if name != "layers.1.up"}
    with pytest.raises(LoadError, match=r"missing: layers\.1\.up"):
        load_native(GATED, missing)
    swapped = weights | {"layers.0.o": weights["layers.0.k"]}
    with pytest.raises(LoadError, match=r"layers\.0\.o is \(64, 64\)"):
        load_native(GATED, swapped)
    cut = weights | {"layers.0.k": weights["layers.0.k"].rows(slice(0, 3))}
    with pytest.raises(LoadError, match=r"layers\.0\.k is \(3, 64\)"):
        load_native(GATED, cut)
    odd = replace(weights["layers.0.k"], format=WeightFormat("q1_0", 2))
    with pytest.raises(LoadError, match="has no kernel"):
        load_native(GATED, weights | {"layers.0.k": odd})


def test_models_without_a_native_path_say_why() -> None:
    narrow = replace(GATED, head_dim=20)
    assert "multiples of 16" in (unsupported(narrow) or "")
    with pytest.raises(ValueError, match="unknown or cannot run"):
        NativeDecoder(GATED, isa="mmx")


def test_same_weights_give_the_same_bits_again() -> None:
    assert same_bits(prefill(native(GATED), text(70)), prefill(native(GATED), text(70)))


@pytest.mark.filterwarnings("ignore:This process")  # forking with threads is what is tested
def test_a_forked_child_computes_with_threads_of_its_own() -> None:
    model = native(GATED, "q4_1", num_threads=2)
    before = prefill(model, text(70))
    child = os.fork()
    if child == 0:
        os._exit(0 if same_bits(before, prefill(model, text(70))) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same_bits(before, prefill(model, text(70)))


def test_a_child_forked_during_a_pass_computes_its_own() -> None:
    # The mutex that a pass holds is held in the child, too, by a thread which is not there.
    model = native(GATED, "q4_1", num_threads=2)
    expected = prefill(model, text(70))
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            prefill(model, text(400))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(20):
            if (child := os.fork()) == 0:
                signal.alarm(20)  # a child that waits for ever ends by it
                same = same_bits(expected, prefill(model, text(70)))
                os._exit(0 if same and same_bits(expected, prefill(model, text(70))) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        busy.join()


def test_a_pass_does_not_depend_on_how_the_caller_flushes_denormals() -> None:
    # With a head this small every logit is denormal: flushed, they would be 0.
    weights = random_weights(GATED)
    weights["head"] = stored("head", weights["head"].dequantize() * 1e-39, "f32")
    model = load_native(GATED, weights, num_threads=4)
    expected = prefill(model, text(70))
    assert expected.all()
    torch = pytest.importorskip("torch")  # which can set the mode
    assert torch.set_flush_denormal(True)
    try:
        flushed = [prefill(model, text(70)) for _ in range(5)]
        flushed.append(prefill(load_native(GATED, weights, num_threads=4), text(70)))
        assert (torch.tensor(1e-40) * 1).item() == 0.0  # the caller's own mode is as it was
    finally:
        torch.set_flush_denormal(False)
    assert all(same_bits(expected, each) for each in flushed)


def test_models_on_one_runtime_share_threads_and_scratch() -> None:
    first = native(GATED, "q4_1", num_threads=2)
    expected = prefill(first, text(70))
    other = native(PLAIN, "q8_0", shares_with=first)
    assert other.runtime is first.runtime
    alone = prefill(native(PLAIN, "q8_0", num_threads=2), text(70))
    for _ in range(3):
        assert same_bits(prefill(first, text(70)), expected)
        assert same_bits(prefill(other, text(70)), alone)
    assert 0 < first.runtime.nbytes() < 8 << 20


def test_a_model_leaves_its_runtime_to_the_others() -> None:
    """More threads than cores: some are late in the pass of a model that is gone."""
    model = native(GATED, "q4_1", num_threads=6)
    expected = prefill(model, text(20))
    for _ in range(100):
        prefill(native(GATED, shares_with=model), text(3))
        assert same_bits(prefill(model, text(20)), expected)


def test_passes_of_an_incomplete_model_are_refused() -> None:
    model = NativeDecoder(GATED, num_threads=1)
    for compute in (
        lambda: prefill(model, (1,)),
        lambda: model.head(np.zeros((1, GATED.hidden_size), np.float32)),
        lambda: model.embed(np.array([1])),
    ):
        with pytest.raises(ValueError, match="is missing"):
            compute()


@pytest.mark.parametrize("is_shared", [False, True])
def test_passes_from_several_threads_take_turns(is_shared: bool) -> None:
    model = native(GATED, "q4_1", num_threads=2)
    models = [model, native(GATED, "q4_1", shares_with=model) if is_shared else model]
    expected = prefill(model, text(70))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: prefill(models[i % 2], text(70)), range(16)))
    assert all(same_bits(expected, result) for result in results)


def test_latents_lie_once_in_the_cache_but_for_codes_of_keys_and_values() -> None:
    numbers = 64 * LATENT.num_layers * LATENT.head_dim
    model = native(LATENT)
    assert model.new_cache(1, 64).pool.block_nbytes == 2 * numbers
    assert model.new_cache(1, 64, "fp32").pool.block_nbytes == 4 * numbers
    assert model.new_cache(1, 64, "int8").pool.block_nbytes < 2 * numbers
