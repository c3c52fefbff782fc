"""The native library rounds numbers to the bytes that the plain way gives."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest

from forerun.weights.codes import FORMATS
from forerun.weights.gguf_blocks import quantize


def numbers() -> np.ndarray:
    """Blocks of usual, large, tiny and equal numbers, of zeros, and of codes that lie halfway between two."""
    source = np.random.default_rng(0)
    sizes = np.float32([1.0, 1e30, 1e-8, 1e-20]).reshape(-1, 1, 1)
    usual = (source.standard_normal((4, 16, 96)).astype(np.float32) * sizes).reshape(-1, 96)
    halves = np.arange(-48, 48, dtype=np.float32) / 2
    halves[::32] = 127
    return np.stack([*usual, halves, np.zeros(96, np.float32), np.full(96, -3.25, np.float32)])


@pytest.mark.parametrize("form", ["q8_0", "q4_1"])
def test_rounding_gives_the_plain_bytes(form: str) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.quantize(numbers(), gguf.GGMLQuantizationType[form.upper()])
    assert np.array_equal(quantize(numbers(), FORMATS[form]), expected)


@pytest.mark.parametrize(
    ("form", "out"), [("q4_k", (2, 144)), ("q8_0", (2, 33)), ("q8_0", (1, 34))]
)
def test_other_formats_and_sizes_are_refused(form: str, out: tuple[int, int]) -> None:
    native = pytest.importorskip("forerun._native")
    values = np.zeros((2, 256 if form == "q4_k" else 32), np.float32)
    with pytest.raises(ValueError, match=r"rounded to q8_0 or q4_1|wrong shape"):
        native.round_blocks(form, values, np.zeros(out, np.uint8))


def test_the_gguf_package_is_imported_for_grids_alone() -> None:
    code = """
import sys
import numpy as np
from forerun.weights.codes import FORMATS
from forerun.weights.gguf_blocks import for_kernels
for name in ("q4_k", "tq1_0", "iq2_xxs"):
    blocks = for_kernels(np.zeros((2, FORMATS[name].block_nbytes), np.uint8), FORMATS[name])
    print(name, blocks.shape[1], "gguf.quants" in sys.modules)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == [
        "q4_k",
        "144",
        "False",
        "tq1_0",
        "54",
        "False",
        "iq2_xxs",
        "138",
        "True",
    ]
