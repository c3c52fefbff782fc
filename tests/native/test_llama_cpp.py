"""llama.cpp reads a GGUF of every family as we do. It needs `make peers`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from forerun.core.batch import Segment
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.codes import FORMATS
from tests.model import test_gguf_formats as formats
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_files import METADATA, add, add_vocabulary
from tests.model.gguf_spellings import PLAIN, SPELLINGS
from tests.model.test_families import TOKENS
from tests.model.tiny import VOCAB, MemoryCheckpoint, hf_model
from tests.native.models import logits_of
from tests.native.test_families import WIDTHS

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".peers" / "llama.cpp" / "bin" / "python"
ADAPTER = ROOT / "src" / "forerun" / "lab" / "bench" / "peers" / "llama_cpp.py"
TEXT = TOKENS * 3
CHANGES: Mapping[str, Mapping[str, Any]] = {
    **WIDTHS,
    "cohere": {"num_hidden_layers": 64},
    "cohere2": {"num_hidden_layers": 4, "layer_types": None},
    "gemma3n": {
        "num_hidden_layers": 25,
        "layer_types": None,
        "num_kv_shared_layers": 5,
        "intermediate_size": 256,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
        "hidden_size_per_layer_input": 256,
        "laurel_rank": 64,
        "final_logit_softcapping": 30.0,
    },
    "exaone4": {"num_hidden_layers": 64, "layer_types": None},
    "olmoe": {"num_key_value_heads": 4},
    "deepseek_v2": {**WIDTHS["deepseek_v2"], "num_hidden_layers": 27},
}
"""In llama.cpp EXAONE 4 has windows, and Command R norms of heads, where there are 64 layers; one layer of four of
Cohere 2 sees everything; OLMoE has as many heads of keys as of queries; DeepSeek-V2-Lite is told by its 27 layers."""
IGNORED = "granitemoehybrid"
"""Without rope: llama.cpp 0.3.36 rotates all the same."""
FILES = [(*names, {}, {}) for names in PLAIN] + [s for s in SPELLINGS if s[0] != IGNORED]
"""What is compared: as `SPELLINGS`."""


def llama_logits(file: Path, out: Path) -> np.ndarray:
    script = Path(__file__).with_name("llama_logits.py")
    command = [PYTHON, script, file, ADAPTER, out, *map(str, TEXT)]
    subprocess.run(command, check=True, capture_output=True)
    return np.load(out)


def write(checkpoint: MemoryCheckpoint, path: Path) -> None:
    """A file with a vocabulary that llama.cpp accepts."""
    writer = gguf.GGUFWriter(str(path), checkpoint.architecture)
    add_vocabulary(writer, VOCAB)
    add(writer, checkpoint)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="needs make peers")
@pytest.mark.parametrize(
    ("family", "architecture", "changes", "metadata"),
    FILES,
    ids=[f"{each[0]}-{each[1]}" for each in FILES],
)
def test_logits_are_llama_cpps(
    tmp_path: Path,
    family: str,
    architecture: str,
    changes: dict[str, Any],
    metadata: dict[str, Any],
) -> None:
    model = hf_model(family, **{"hidden_size": 64, **changes, **CHANGES.get(family, {})})
    if model.config.num_hidden_layers > 20:  # else the roundings of a layer grow in the next ones
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "o_proj" in name or "down_proj" in name:
                    weight *= 0.03
    file, out = tmp_path / "tiny.gguf", tmp_path / "logits.npy"
    checkpoint = as_gguf(model, architecture, {**metadata, **METADATA.get(family, {})})
    if architecture == "gemma4":  # the first quarter of a head is rotated
        turned = torch.where(torch.arange(16) < 4, 1.0, 1e30)
        checkpoint = replace(
            checkpoint, tensors={**checkpoint.tensors, "rope_freqs.weight": turned}
        )
    if architecture == "gemma3n":  # files have what layers with others' keys and values do not use
        unused = {
            f"blk.{i}.attn_{part}.weight": checkpoint.tensors[f"blk.0.attn_{part}.weight"]
            for i in range(20, 25)
            for part in ("k", "v", "k_norm")
        }
        checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, **unused})
    write(checkpoint, file)
    theirs = llama_logits(file, out)
    native = load_model(open_checkpoint(file))
    ours = logits_of(native, native.new_cache(1, 128), Segment(0, 0, TEXT))
    is_close = np.abs(ours - theirs).max(-1) < 0.05 * theirs.std()
    # Where two experts are nearly as good, a rounding elsewhere chooses the other one; later rows see that one.
    assert is_close.mean() > 0.7
    assert np.corrcoef(ours[is_close].ravel(), theirs[is_close].ravel())[0, 1] > 0.9999


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="needs make peers")
@pytest.mark.parametrize("form", [name for name in formats.READ if FORMATS[name].group])
def test_logits_of_any_format_are_llama_cpps(tmp_path: Path, form: str) -> None:
    """But for what both round: activations, here in groups of 32, there of as many as a block has."""
    file = formats.write(tmp_path / "m.gguf", form)
    theirs = llama_logits(file, tmp_path / "logits.npy")
    native = load_model(open_checkpoint(file))
    ours = logits_of(native, native.new_cache(1, 128), Segment(0, 0, TEXT))
    assert np.abs(ours - theirs).std() < 0.1 * theirs.std()
