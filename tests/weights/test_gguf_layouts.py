"""GGUF files as other makers lay them out: any order and alignment, and larger than the machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import LoadError
from forerun.model.loader import read_config, weights_nbytes
from forerun.system.device import resident_nbytes
from forerun.weights.checkpoint import open_checkpoint
from tests.weights.files import matrix
from tests.weights.raw_gguf import Entry, RawGguf

TENSORS = {f"w{rows}": matrix(rows, 32, seed=rows) for rows in (1, 3, 8, 17)}
LAYERS, WIDTH, INNER, VOCAB = 76, 4096, 16384, 1 << 17
Q8_0 = gguf.GGMLQuantizationType.Q8_0


@given(
    order=st.permutations(list(TENSORS)), alignment=st.sampled_from([8, 32, 64, 256, 1024, 4096])
)
def test_any_order_and_alignment_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], alignment: int
) -> None:
    path = tmp_path_factory.mktemp("layout") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for name in order:
        writer.add_tensor(name, TENSORS[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(path)
    assert checkpoint.names() == TENSORS.keys()
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).dequantize(), values)


def large(path: Path) -> int:
    """Write the header of a model of 8-bit weights and a hole where these would be; return their bytes."""
    raw = RawGguf(
        {
            "general.architecture": "llama",
            "llama.block_count": LAYERS,
            "llama.embedding_length": WIDTH,
            "llama.feed_forward_length": INNER,
            "llama.context_length": 8192,
            "llama.attention.head_count": 32,
            "llama.attention.head_count_kv": 8,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.vocab_size": VOCAB,
        }
    )
    stop = 0

    def add(name: str, *shape: int) -> None:
        nonlocal stop
        raw.entries.append(Entry(name, shape[::-1], Q8_0 if len(shape) > 1 else 0, stop))
        nbytes = shape[0] * shape[1] // 32 * 34 if len(shape) > 1 else 4 * shape[0]
        stop += -(-nbytes // 32) * 32

    add("token_embd.weight", VOCAB, WIDTH)
    add("output.weight", VOCAB, WIDTH)
    add("output_norm.weight", WIDTH)
    for i in range(LAYERS):
        for name, *shape in (
            ("attn_norm", WIDTH),
            ("ffn_norm", WIDTH),
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH // 4, WIDTH),
            ("attn_v", WIDTH // 4, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ):
            add(f"blk.{i}.{name}.weight", *shape)
    header = raw.to_bytes()
    path.write_bytes(header)
    os.truncate(path, len(header) + stop)
    return stop


def test_a_file_beyond_memory_is_opened_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    nbytes = large(path)
    assert nbytes > 20e9
    assert path.stat().st_blocks * 512 < 1e6, "the disk keeps no holes"
    before = resident_nbytes()
    checkpoint = open_checkpoint(path)
    config, _ = read_config(checkpoint)
    assert (config.num_layers, config.hidden_size) == (LAYERS, WIDTH)
    assert 0.95 * nbytes < weights_nbytes(checkpoint) <= nbytes
    assert resident_nbytes() - before < 64e6
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(LoadError, match="truncated"):
        open_checkpoint(path)
