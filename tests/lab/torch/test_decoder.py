"""The decoder's promises beside the row law: aux hidden states, room, bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError
from forerun.lab.torch.decoder import Decoder
from tests.arrays import assert_close
from tests.lab.torch.decoders import random_decoder
from tests.model.test_row_law import TORCH, decoder_of

TOKENS = tuple(range(11))


def test_aux_hidden_states_are_layer_outputs_in_the_order_asked() -> None:
    decoder = decoder_of("gated")
    hidden = decoder.forward(Batch((Segment(0, 0, TOKENS),)), decoder.new_cache(1, 16), (1, 0, 1))
    assert [each.shape for each in hidden.aux] == [(11, 32)] * 3
    assert np.array_equal(hidden.aux[0], hidden.aux[2])
    assert not np.array_equal(hidden.aux[0], hidden.aux[1])
    weight = decoder.weights["norm"]
    normed = torch.nn.functional.rms_norm(
        torch.from_numpy(hidden.aux[0]), (32,), weight, decoder.config.norm_eps
    )
    assert_close(normed, hidden.last)


def test_aux_hidden_states_do_not_change_the_result() -> None:
    decoder = decoder_of("gated")
    batch = Batch((Segment(0, 0, TOKENS),))
    plain = decoder.forward(batch, decoder.new_cache(1, 16))
    assert plain.aux == ()
    assert np.array_equal(decoder.forward(batch, decoder.new_cache(1, 16), (0,)).last, plain.last)


def test_the_heads_rows_are_read_through_a_soft_cap() -> None:
    decoder = decoder_of("capped")
    head = decoder.weights["head"]
    assert_close(decoder.head_weights(None), head, rtol=1e-4, atol=1e-4)
    ids = np.array([3, 7])
    assert_close(decoder.head_weights(ids), head[ids], rtol=1e-4, atol=1e-4)
    assert np.abs(decoder.head(np.eye(32, dtype=np.float32)).T - head.numpy()).max() > 0.01


def test_rows_beyond_the_cache_are_refused_before_anything_is_written() -> None:
    decoder = decoder_of("gated")
    cache = decoder.new_cache(2, 10)
    batch = Batch((Segment(0, 0, TOKENS[:3]), Segment(1, 0, TOKENS)))
    with pytest.raises(CapacityError, match="11 rows do not fit a cache of 10"):
        decoder.forward(batch, cache)
    keys, values = cache.read(0, 0, 10)
    assert not keys.any()
    assert not values.any()


def test_positions_beyond_the_context_are_refused() -> None:
    decoder = random_decoder(replace(TORCH["gated"], max_position=8))
    cache = decoder.new_cache(1, 64)
    decoder.forward(Batch((Segment(0, 0, TOKENS[:8]),)), cache)
    siblings = (-1,) * 11
    decoder.forward(Batch((Segment(0, 7, TOKENS, siblings),)), cache)
    with pytest.raises(CapacityError, match=r"position 8 .* context of 8 tokens"):
        decoder.forward(Batch((Segment(0, 0, TOKENS[:9]),)), cache)


def test_bytes_are_the_weights() -> None:
    decoder = decoder_of("plain")
    assert isinstance(decoder, Decoder)
    attention = 4 * 32 * 64
    mlp = 2 * 32 * 48
    norms = 2 * 2 * 32
    outside = 2 * 61 * 32 + (512 + 2) * 32 + 2 * 32
    assert decoder.nbytes() == 4 * (2 * (attention + mlp + norms) + outside)
