"""The row law: a row's bits are the same alone and in any company, prefilled, decoded or drafted, on any threads."""

from __future__ import annotations

import os
from functools import cache as memo
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.batch import Segment
from forerun.model.config import (
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    RecurrentConfig,
    RopeConfig,
    StreamsConfig,
)
from forerun.model.kernels import native as kernels
from forerun.model.model import Model
from tests.arrays import normal, same_bits
from tests.native import models
from tests.native.models import logits_of

VOCAB = 61
KEY_BLOCK = 128  # of the torch decoder, and two of the native one's
MAX_LEN = 2 * KEY_BLOCK + 100

GATED = {
    "family": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_position": 512,
    "rope": RopeConfig(10000.0, 16),
}
ODD_WIDTHS = {"hidden_size": 60, "intermediate_size": 92, "head_dim": 20, "num_heads": 3}
PLAIN = {"norm": "layer", "gated_mlp": False, "rope": None, "learned_position_offset": 2}
TORCH = {
    "gated": ModelConfig(**GATED),
    "window": ModelConfig(**GATED | {"sliding_window": 37, "qk_norm": "head"}),
    "odd": ModelConfig(**GATED | ODD_WIDTHS | {"num_kv_heads": 1, "activation": "gelu"}),
    "plain": ModelConfig(**GATED | PLAIN | {"num_kv_heads": 4, "activation": "gelu_tanh"}),
}
SHARED = LayerConfig(RopeConfig(100.0, 8), None, ExpertsConfig(5, 2, 24, renormalized=False))
WINDOWED = LayerConfig(None, 37, ExpertsConfig(5, 2, 24), has_mlp=False)
TORCH["experts"] = ModelConfig(**GATED | {"rope": None, "layers": (SHARED, WINDOWED)})
BOTH = {"norms": "both", "qk_norm": "whole", "attention_sinks": True, "query_growth": 0.3}
CAPS = {"attention_cap": 2.0, "logits_cap": 3.0, "query_growth_every": 50}
TORCH["capped"] = ModelConfig(**GATED | BOTH | CAPS | {"activation": "swiglu_oai"})
TORCH["parallel"] = ModelConfig(**GATED | {"norms": "parallel", "norm": "layer", "qk_norm": "each"})
NORMED = ExpertsConfig(5, 2, 24, has_norms=True)
GEMMA4 = (
    LayerConfig(RopeConfig(100.0, 16), 37, NORMED),
    LayerConfig(RopeConfig(100.0, 24), None, head_dim=24, num_kv_heads=1, has_values=False),
    LayerConfig(RopeConfig(100.0, 16), 37, intermediate_size=96, shares_kv_of=0),
)
OTHERS = {"layers": GEMMA4, "num_layers": 3, "layer_scales": True, "per_layer_width": 12}
OTHERS |= {"norms": "both", "qk_norm": "head", "value_norm": True, "rope": None}
TORCH["gemma4"] = ModelConfig(**GATED | OTHERS)
GEMMA3N = (
    LayerConfig(RopeConfig(100.0, 16), 37, sparsity_cutoff=0.5),
    LayerConfig(None, shares_kv_of=0),
)
STREAMS = {"layers": GEMMA3N, "num_layers": 2, "layer_scales": False, "per_layer_vocab": 50}
TORCH["streams"] = ModelConfig(**GATED | OTHERS | STREAMS | {"streams": StreamsConfig(4, 12)})
HYBRID = tuple(
    LayerConfig(RopeConfig(100.0, 8) if kind is None else None, recurrent=kind)
    for kind in (
        RecurrentConfig("delta", 4, 4, 2, 12, 8),
        RecurrentConfig("mamba2", 4, 4, 2, 8, 12, conv_bias=True),
        None,
        RecurrentConfig("conv", 3),
    )
)
TORCH["hybrid"] = ModelConfig(
    **GATED | {"layers": HYBRID, "num_layers": 4, "rope": None, "attention_gate": True}
)
GROUPED = {"scoring": "sigmoid", "has_choice_bias": True, "num_groups": 4, "num_active_groups": 2}
GROUPED_EXPERTS = ExpertsConfig(8, 2, 24, sum_offset=1e-20, scale=1.5, group_best=2, **GROUPED)
ALONE = (
    LayerConfig(None, recurrent=RecurrentConfig("mamba2", 4, 4, 2, 8, 12), has_mlp=False),
    LayerConfig(None, experts=GROUPED_EXPERTS, has_mixer=False),
    LayerConfig(None, has_mlp=False),
)
TORCH["alone"] = ModelConfig(
    **GATED | {"layers": ALONE, "num_layers": 3, "rope": None, "gated_mlp": False}
)
LATENT = {"latent": LatentConfig(24, 8, 12, 20, 16), "num_kv_heads": 1, "head_dim": 32}
TORCH["latent"] = ModelConfig(**GATED | LATENT | {"rope": RopeConfig(100.0, 8)})
NATIVE = {f"native {name}": kind for name, kind in models.KINDS.items()}
# Under an emulator (`dev/arm`) the kernels alone: torch's decoders show nothing of them and take an hour.
EMULATED = "EMULATED" in os.environ
HAS_TORCH = find_spec("torch") is not None
KINDS = [*(TORCH if HAS_TORCH and not EMULATED else ())]
KINDS += 4 * [*NATIVE] if kernels.available() else []
"""The native ones take a hundredth of the time, and come more often."""

law = settings(
    deadline=None, max_examples=20 if EMULATED else 110, suppress_health_check=list(HealthCheck)
)
kinds = st.sampled_from(KINDS)
threads = st.sampled_from([1, 2])
bases = st.one_of(
    st.integers(0, 40),
    *(st.integers(edge - 12, edge + 4) for edge in (64, KEY_BLOCK)),
    st.integers(2 * KEY_BLOCK - 20, 2 * KEY_BLOCK),
)


@memo
def decoder_of(kind: str, num_threads: int = 2) -> Model:
    """A model of a kind; of torch's the threads are the process's."""
    if kind in TORCH:
        from tests.lab.torch.decoders import random_decoder

        return random_decoder(TORCH[kind])
    return models.native(*NATIVE[kind], num_threads)


@memo
def text() -> tuple[int, ...]:
    return tuple(np.random.default_rng(1).integers(0, VOCAB, MAX_LEN).tolist())


@memo
def plainly_begun(kind: str):
    """A cache and the logits of the rows of `text` that it holds, none yet."""
    return decoder_of(kind).new_cache(1, MAX_LEN), []


def plain_logits(kind: str, start: int, stop: int) -> Floats:
    """Logits (stop - start, V) of `text`, decoded one row a pass."""
    cache, rows = plainly_begun(kind)
    rows += [decode(decoder_of(kind), cache, 0, (token,)) for token in text()[len(rows) : stop]]
    return np.concatenate(rows[start:stop])


def decode(decoder: Model, cache, slot: int, tokens: tuple[int, ...]) -> Floats:
    """One pass over a chain, all of it kept; logits (n, V)."""
    segment = Segment(slot, cache.length(slot), tokens, certain=len(tokens))
    logits = logits_of(decoder, cache, segment)
    cache.keep(slot, range(len(tokens)))
    return logits


def cut(decoder: Model, cache, slot: int, tokens: tuple[int, ...]) -> None:
    """Make a slot that of the first of its tokens alone; a recurrent state cannot always go back to them."""
    states = cache.states
    if states is None or len(tokens) >= states.rows[slot]:
        cache.truncate(slot, len(tokens))
        return
    cache.truncate(slot, 0)
    if tokens:
        decode(decoder, cache, slot, tokens)


def tokens_of(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size).map(tuple)


@st.composite
def parents_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(-1, i - 1)) for i in range(size))


@law
@given(kind=kinds, sizes=st.lists(st.integers(1, 64), min_size=1, max_size=5), threads=threads)
def test_chunked_prefill_equals_step_by_step(kind: str, sizes: list[int], threads: int) -> None:
    decoder = decoder_of(kind, threads)
    cache = decoder.new_cache(1, MAX_LEN)
    done = 0
    for size in sizes:
        logits = decode(decoder, cache, 0, text()[done : done + size])
        assert same_bits(logits, plain_logits(kind, done, done + size))
        done += size


@law
@given(data=st.data(), kind=kinds, base=bases, size=st.integers(1, 40), threads=threads)
def test_a_tree_row_equals_its_path_decoded(data, kind, base, size, threads) -> None:
    decoder = decoder_of(kind, threads)
    nodes, parents = data.draw(tokens_of(size)), data.draw(parents_of(size))
    cache = decoder.new_cache(2, MAX_LEN)
    for slot in range(2 if base else 0):
        decode(decoder, cache, slot, text()[:base])
    logits = logits_of(decoder, cache, Segment(0, base, nodes, parents))
    for node in data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=3)):
        path = tree.path_to(node, parents)
        cut(decoder, cache, 1, text()[:base])
        for step in path:
            alone = decode(decoder, cache, 1, (nodes[step],))
            assert same_bits(alone[0], logits[step])


@law
@given(data=st.data(), kind=kinds, base=bases, size=st.integers(2, 20))
def test_a_tree_grown_in_pieces_equals_one_pass(data, kind: str, base: int, size: int) -> None:
    decoder = decoder_of(kind)
    nodes, parents = data.draw(tokens_of(size)), data.draw(parents_of(size))
    cut = data.draw(st.integers(1, size - 1))
    cache = decoder.new_cache(1, MAX_LEN)
    if base:
        decode(decoder, cache, 0, text()[:base])
    whole = logits_of(decoder, cache, Segment(0, base, nodes, parents))
    first = logits_of(decoder, cache, Segment(0, base, nodes, parents, stop=cut))
    second = logits_of(decoder, cache, Segment(0, base, nodes, parents, first=cut))
    assert same_bits(np.concatenate((first, second)), whole)


@law
@given(data=st.data(), kind=kinds, lengths=st.lists(bases, min_size=2, max_size=4))
def test_company_does_not_matter(data, kind: str, lengths: list[int]) -> None:
    decoder = decoder_of(kind)
    cache = decoder.new_cache(len(lengths), MAX_LEN)
    segments = []
    for slot, base in enumerate(lengths):
        if base:
            decode(decoder, cache, slot, text()[:base])
        size = data.draw(st.integers(1, 12))
        segments.append(
            Segment(slot, base, data.draw(tokens_of(size)), data.draw(parents_of(size)))
        )
    together = logits_of(decoder, cache, *segments)
    alone = [logits_of(decoder, cache, segment) for segment in segments]
    assert same_bits(together, np.concatenate(alone))


@law
@given(data=st.data(), kind=kinds)
def test_cache_history_does_not_matter(data, kind: str) -> None:
    """After trees, kept paths, cuts and reuse in any order a slot answers like a fresh one."""
    decoder = decoder_of(kind)
    cache = decoder.new_cache(3, MAX_LEN)
    held: list[tuple[int, ...]] = [(), (), ()]
    for tokens in held:
        cache.open(tokens)
    for _ in range(data.draw(st.integers(1, 8))):
        slot = data.draw(st.integers(0, 2))
        verb = data.draw(st.sampled_from(["tree", "tree", "truncate", "reuse"]))
        if verb == "tree":
            size = data.draw(st.integers(1, 20))
            nodes, parents = data.draw(tokens_of(size)), data.draw(parents_of(size))
            logits_of(decoder, cache, Segment(slot, len(held[slot]), nodes, parents))
            path = tree.path_to(data.draw(st.integers(-1, size - 1)), parents)
            cache.keep(slot, path)
            held[slot] += tuple(nodes[i] for i in path)
        elif verb == "truncate":
            length = data.draw(st.integers(0, len(held[slot])))
            held[slot] = held[slot][:length]
            cut(decoder, cache, slot, held[slot])
        else:  # all leave, and three come that go on with what one was
            begun = (*held[slot], 7)
            for other in range(3):
                cache.close(other, held[other])
            for new, length in (cache.open(begun) for _ in range(3)):
                held[new] = begun[:length]
    for slot, tokens in enumerate(held):
        assert cache.length(slot) == len(tokens)
        fresh = decode(decoder, decoder.new_cache(1, MAX_LEN), 0, (*tokens, 7))
        assert same_bits(decode(decoder, cache, slot, (7,))[0], fresh[-1])


@pytest.mark.parametrize("kind", TORCH)
def test_any_number_of_threads(kind: str) -> None:
    torch = pytest.importorskip("torch")
    decoder = decoder_of(kind)
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        cache = decoder.new_cache(1, MAX_LEN)
        logits = decode(decoder, cache, 0, text()[:20])
        assert same_bits(logits, plain_logits(kind, 0, 20))


@pytest.mark.skipif(not HAS_TORCH, reason="the decoder is torch's")
def test_the_head_keeps_the_row_law() -> None:
    decoder = decoder_of("gated")
    hidden = normal(21, 32, seed=3)
    alone = np.concatenate([decoder.head(row[None]) for row in hidden])
    assert same_bits(decoder.head(hidden), alone)
