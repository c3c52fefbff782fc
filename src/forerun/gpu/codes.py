"""How each weight format lies on the device and is read there; `Layout` names what the kernels are compiled for.

A matrix (N, K) is multiplied 32 inputs at a time. Codes of 4 bits lie (K / 64, N, 32), inputs 64 i + j in the low
halves of bytes, 64 i + 32 + j in the high ones, and further bits in words (bits, K / 32, N), input j of the group in
bit j; those of 8 bits, and grids' points, (K / 32, N, 32) as signed bytes. Scales and minima lie (groups, N).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import triton
import triton.language as tl

from forerun.gpu.numbers import GROUP

SUPER = 256
"""Inputs that share the factors of a K format."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A format of codes as kernels are compiled for it. `weight = scale * (code - zero) + minimum`."""

    bits: int
    """Of a code in a byte: 4, or 8 and signed."""
    more_bits: int = 0
    """Bits of a code above those 4."""
    zero: int = 0
    """The code that stands for 0; what signed bytes lack of unsigned ones is below 0."""
    parts: int = 1
    """Scales of 32 inputs."""
    scale_group: int = 32
    """Inputs that share a scale."""
    has_factors: bool = False
    """Whether scales and minima are multiplied by factors of 256 inputs."""
    has_mins: bool = False
    is_zero_point: bool = False
    """Whether minima are those of codes, to be multiplied by the scale."""

    def constants(self) -> dict[str, int]:
        """Return the constants of the kernel `linear`."""
        return {
            "BITS": self.bits,
            "MORE_BITS": self.more_bits,
            "ZERO": self.zero,
            "PARTS": self.parts,
            "SCALE_GROUP": self.scale_group,
            "HAS_FACTORS": self.has_factors,
            "HAS_MINS": self.has_mins,
            "IS_ZERO_POINT": self.is_zero_point,
        }


LAYOUTS: Mapping[str, Layout] = {
    "q4_0": Layout(4, zero=8),
    "q4_1": Layout(4, has_mins=True),
    "q4_z": Layout(4, has_mins=True, is_zero_point=True),
    "q5_0": Layout(4, 1, zero=16),
    "q5_1": Layout(4, 1, has_mins=True),
    "q8_0": Layout(8),
    "q8_m": Layout(8, zero=-128, has_mins=True),
    "q8_z": Layout(8, has_mins=True, is_zero_point=True),
    "q2_k": Layout(4, parts=2, scale_group=16, has_factors=True, has_mins=True),
    "q3_k": Layout(4, zero=4, parts=2, scale_group=16, has_factors=True),
    "q4_k": Layout(4, has_factors=True, has_mins=True),
    "q5_k": Layout(4, 1, has_factors=True, has_mins=True),
    "q6_k": Layout(4, 2, zero=32, parts=2, scale_group=16, has_factors=True),
    "iq4_nl": Layout(8),
    "iq4_xs": Layout(8),
    **dict.fromkeys(("iq3_xxs", "iq3_s", "iq2_xxs", "iq1_s"), Layout(8)),
    **dict.fromkeys(("iq2_xs", "iq2_s", "iq1_m"), Layout(8, parts=2, scale_group=16)),
    **dict.fromkeys(("tq1_0", "tq2_0"), Layout(4, zero=1, scale_group=256)),
    "mxfp4": Layout(8),
}
"""By the names of `weights.codes.FORMATS`. Grids are held as bytes, with fp32 scales where fp16 cannot hold them."""
FLOATS = ("f32", "f16", "bf16", "f8")
"""Formats whose inputs stay floats: they lie (K, N)."""


@triton.jit
def read_codes(
    packed, more, part, group, n, N, K: tl.constexpr, BITS: tl.constexpr, MORE_BITS: tl.constexpr, ZERO: tl.constexpr
):  # fmt: skip
    """Return the signed codes (32, n) of a group, part `part` of packed bytes (32, n)."""
    if BITS == 8:
        return packed
    code = (packed >> (4 * part)) & 15
    bit = tl.arange(0, GROUP)[:, None]
    for i in tl.static_range(MORE_BITS):
        word = tl.load(more + (i * (K // GROUP) + group) * N + n, n < N, 0)[None]
        code |= (((word >> bit) & 1) << (4 + i)).to(tl.uint8)
    return code.to(tl.int8) - ZERO


@triton.jit
def read_numbers(
    numbers, factors, first, n, N, NUMBER_GROUP: tl.constexpr, HAS_FACTORS: tl.constexpr
):  # fmt: skip
    """Return the scales or minima (n,) of inputs from `first` on, in fp32, which holds them exactly."""
    found = tl.load(numbers + (first // NUMBER_GROUP) * N + n, n < N, 0).to(tl.float32)
    if HAS_FACTORS:
        found = found * tl.load(factors + (first // 256) * N + n, n < N, 0).to(tl.float32)
    return found
