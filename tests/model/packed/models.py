"""Tiny models whose weights are packed, and the files in the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forerun.model.backends.native import NativeDecoder
from forerun.model.loader import load_model, read_config
from forerun.model.packed import folder as packed_folder
from forerun.model.packed.file import PackedFile
from forerun.weights.checkpoint import open_checkpoint
from tests.model.tiny import hf_model
from tests.native.test_families import WIDTHS

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
FAMILIES = {
    "llama": {"head_dim": 16},  # biases
    "qwen3": {},  # norms of heads
    "opt": {"num_attention_heads": 2},  # layer norms, positions
}
UNEVEN = {"gemma4_moe": {"hidden_size": 64, **WIDTHS["gemma4_moe"]}}
"""With vectors of one number and of five."""


def saved(folder: Path, family: str = "llama") -> Path:
    hf_model(family, **{**FAMILIES, **UNEVEN}[family]).save_pretrained(folder / family)
    return folder / family


def load(folder: Path, **options) -> NativeDecoder:
    options = {"weight_cache": True, **options}
    model = load_model(open_checkpoint(folder), backend="native", **options)
    assert isinstance(model, NativeDecoder)
    return model


def files() -> list[Path]:
    """What lies in the cache, sorted by name."""
    return sorted(entry.path for entry in packed_folder.default_folder().entries())


def only_file() -> Path:
    (path,) = files()
    return path


def packed_file(folder: Path) -> PackedFile:
    """The packed file of an unrounded model."""
    return PackedFile.of(folder, open_checkpoint(folder).files, quant="none", head_bits=None)


def serves(folder: Path, path: Path) -> bool:
    """Whether the file gives a decoder all its weights."""
    config, _ = read_config(open_checkpoint(folder))
    file = replace(packed_file(folder), name=path.name)
    return bool(file.load(NativeDecoder(config, num_threads=1)))
