"""The plans of passes for many threads: barriers, even shares, scratch, and what the model makes of them."""

from __future__ import annotations

import pytest

from dev import pool_model
from dev.pool_model import SHAPES, Pass, phases, scratch_nbytes, shares

ALL_THREADS = [*range(1, 33), 48, 64, 96, 127, 128]


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("context", [100, 8000])
def test_shares_are_even_for_any_number_of_threads(name: str, context: int) -> None:
    for num_threads in ALL_THREADS:
        for rows in (1, 5):
            for pieces in set(phases(SHAPES[name], num_threads, rows, context)):
                count, most = shares(pieces, num_threads)
                assert count <= num_threads
                assert count * most <= 1.1 * pieces or most == 1 or count * most - pieces < most


def test_a_layer_has_five_phases_where_rows_are_few() -> None:
    dense, experts = SHAPES["Qwen2.5-1.5B"], SHAPES["OLMoE-1B-7B"]
    for num_threads in (2, 64):
        for rows, context in ((1, 100), (8, 8000)):
            assert len(phases(dense, num_threads, rows, context)) == 5 * dense.num_layers + 1
        assert len(phases(experts, num_threads)) <= 6 * experts.num_layers + 1


def test_attention_takes_little_scratch_in_any_context() -> None:
    for name in ("Qwen2.5-1.5B", "Llama-3.1-8B"):
        for num_threads in (2, 16, 64, 128):
            for context in (1 << 12, 1 << 15, 1 << 17):
                nbytes = scratch_nbytes(SHAPES[name], num_threads, context)
                assert nbytes <= 8e6 + 1e5 * num_threads


def test_by_the_model_passes_are_bound_by_memory() -> None:
    config = SHAPES["Qwen2.5-1.5B"]
    assert Pass.of(config, 16).share >= 0.7
    at_64 = Pass.of(config, 64)
    assert at_64.share >= 0.55
    assert at_64.barriers_s <= 0.1 * at_64.seconds


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_by_the_model_no_pass_is_slower_than_with_half_the_threads(name: str) -> None:
    for num_threads in (2, 4, 8, 16, 32, 64, 128):
        whole, half = (Pass.of(SHAPES[name], t).seconds for t in (num_threads, num_threads // 2))
        assert whole <= 1.03 * half


def test_the_json_line_has_what_is_printed() -> None:
    document = pool_model.documents()
    assert document["phases"] == len(phases(SHAPES["Qwen2.5-1.5B"], 16, 1, 128)) + 1
    assert set(document["scratch_mb"]) == set(pool_model.THREADS)
