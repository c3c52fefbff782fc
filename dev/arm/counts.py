"""Passes of a linear layer by instruction set, format and rows: `dev.arm.table` runs them under qemu with its plugin.

Prints a line "ISA FORMAT ROWS MULTIPLICATIONS" for four marks, whose counts the plugin of count.c writes to stderr:
before and after PASSES passes, then twice as many. The difference has no call's own instructions in it.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np

from forerun import _native
from forerun.model.config import ModelConfig
from forerun.model.shapes import weight_shapes
from forerun.weights.codes import FORMATS

NUM_OUT, NUM_IN, PASSES = 512, 1024, 2
SHOWN = ("q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "q8_0", "iq4_nl", "q4_c")
ROWS = (1, 4, 8)


def mark(number: int) -> None:
    """Make the plugin write its count."""
    with contextlib.suppress(OSError):
        os.close(-1001 - number)


def decoder_of(isa: str, form: str) -> _native.Decoder:
    """Return a decoder with one layer of random weights."""
    config = ModelConfig(
        family="llama",
        vocab_size=64,
        hidden_size=NUM_IN,
        intermediate_size=NUM_OUT,
        num_layers=1,
        num_heads=NUM_IN // 64,
        num_kv_heads=NUM_IN // 64,
        head_dim=64,
        max_position=64,
    )
    decoder = _native.Decoder(_native.Runtime(isa, 1), config, weight_shapes(config))
    random, name = np.random.default_rng(0), "layers.0.up"
    if FORMATS[form].is_flat:
        codes = random.integers(-7, 8, (NUM_OUT, NUM_IN)).astype(np.int8)
        ones = np.ones(NUM_IN, np.float32)
        pieces = np.ones(NUM_IN, np.int32)
        decoder.set_flat(
            name, form, codes, np.ones(NUM_OUT, np.float32), ones, pieces, 127, False, None
        )
        return decoder
    shape = NUM_OUT, NUM_IN // FORMATS[form].block * FORMATS[form].block_nbytes
    decoder.set(name, form, NUM_IN, random.integers(0, 64, shape, dtype=np.uint8), None)
    return decoder


def main() -> None:
    """Measure all."""
    number = 0
    for isa in _native.runnable_isas():
        for form in SHOWN:
            decoder = decoder_of(isa, form)
            for rows in ROWS:
                x = np.random.default_rng(1).standard_normal((rows, NUM_IN)).astype(np.float32)
                out = np.empty((rows, NUM_OUT), np.float32)
                decoder.apply("layers.0.up", x, out)
                for passes in (PASSES, 2 * PASSES):
                    mark(number)
                    for _ in range(passes):
                        decoder.apply("layers.0.up", x, out)
                    mark(number + 1)
                    number += 2
                print(isa, form, rows, PASSES * rows * NUM_OUT * NUM_IN, flush=True)


if __name__ == "__main__":
    main()
