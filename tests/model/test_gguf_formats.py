"""Every format of a GGUF, from a file to logits: torch has the reference's values, the kernels have its codes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from forerun.core.arrays import Floats
from forerun.model.loader import load_model
from forerun.model.model import Model
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.codes import FORMATS
from tests.arrays import cosine
from tests.model.gguf_files import add_vocabulary
from tests.native.models import prefill, stored

WIDTH, VOCAB, LAYERS = 256, 77, 2
Type = gguf.GGMLQuantizationType
READ = [name for name in FORMATS if name.upper() in Type.__members__]
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (2 * WIDTH, WIDTH),
    "ffn_up": (2 * WIDTH, WIDTH),
    "ffn_down": (WIDTH, 2 * WIDTH),
}


def write(path: Path, form: str, *, as_values: bool = False) -> Path:
    """A small llama whose matrices are stored in a format; as the reference's values in fp32 if asked for."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, LAYERS),
        (writer.add_context_length, 256),
        (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, 2 * WIDTH),
        (writer.add_head_count, 8),
        (writer.add_head_count_kv, 4),
        (writer.add_vocab_size, VOCAB),
    ):
        add(value)
    add_vocabulary(writer, VOCAB)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 8)
    shapes = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in SHAPES.items()}
    random = np.random.default_rng(3)
    for name, shape in shapes.items():
        values = random.standard_normal(shape) * (1 if name == "token_embd" else 0.1)
        data = nvfp4(shape) if form == "nvfp4" else stored(name, values, form).data
        has_scale = form == "nvfp4" and name != "token_embd"
        scale = np.float32([0.25] * has_scale)
        if as_values:
            read = gguf.dequantize(data, Type[form.upper()]) * (scale if len(scale) else 1)
            writer.add_tensor(f"{name}.weight", read.astype(np.float32))
            continue
        writer.add_tensor(f"{name}.weight", data, raw_dtype=Type[form.upper()])
        if len(scale):
            writer.add_tensor(f"{name}.scale", scale)
            writer.add_tensor(f"{name}.input_scale", scale)
    norms = [f"blk.{i}.{name}" for i in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    for name in [*norms, "output_norm"]:
        writer.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def nvfp4(shape: tuple[int, int]) -> np.ndarray:
    """Random blocks of 64 numbers: four e4m3 scales, then 32 bytes of nibbles."""
    random = np.random.default_rng(shape[0])
    blocks = random.integers(0, 256, (shape[0], shape[1] // 64, 36), dtype=np.uint8)
    blocks[..., :4] = random.integers(0x20, 0x48, (*blocks.shape[:2], 4))
    return blocks.reshape(shape[0], -1)


def model(path: Path, backend: str) -> Model:
    if backend == "native":
        return load_model(open_checkpoint(path))
    from tests.model.tiny import load_torch

    return load_torch(open_checkpoint(path))


def logits(path: Path, backend: str) -> Floats:
    return prefill(model(path, backend), tuple(range(0, 60, 3)), 64)


@pytest.mark.parametrize("form", READ)
def test_a_file_in_any_format_is_the_reference_readers_model(tmp_path: Path, form: str) -> None:
    pytest.importorskip("torch")
    path = write(tmp_path / "m.gguf", form)
    expected = logits(write(tmp_path / "values.gguf", form, as_values=True), "torch")
    assert np.array_equal(logits(path, "torch"), expected)
    similarity = cosine(logits(path, "native"), expected)
    least = 0.9999 if FORMATS[form].group is None else 0.99  # rows are rounded to int8 beside codes
    assert similarity.mean() > least, similarity
