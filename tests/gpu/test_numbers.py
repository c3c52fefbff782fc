"""Functions of single numbers have the bits of the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from forerun import _native
from forerun.gpu.numbers import LAUNCH, exp, gelu, sigmoid
from tests.gpu.oracle import DEVICE, same


@triton.jit
def put(x, out, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + at)
    if FUNCTION == "exp":
        y = exp(given)
    elif FUNCTION == "sigmoid":
        y = sigmoid(given)
    else:
        y = gelu(given)
    tl.store(out + at, y)


@pytest.mark.parametrize("function", ["exp", "sigmoid", "gelu"])
def test_functions_have_the_cpus_bits(function: str) -> None:
    """Of the numbers that routers and MLPs see, and of floats of any size."""
    random = np.random.default_rng(0)
    words = random.integers(0, 1 << 32, 8000, dtype=np.uint32).view(np.float32)
    ends = [0.0, -0.0, 88.72283, -103.97208, 10.0, -10.0]
    usual = random.uniform(-110, 90, 16384 - len(words) - len(ends))
    x = np.concatenate([np.where(np.abs(words) < 1e18, words, 1.0), ends, usual]).astype(np.float32)
    expected = np.empty_like(x)
    _native.evaluate(function, x, expected)
    out = torch.zeros(len(x), device=DEVICE)
    put[(16,)](torch.from_numpy(x).to(DEVICE), out, FUNCTION=function, BLOCK=1024, **LAUNCH)
    assert same(out.cpu().numpy(), expected)
