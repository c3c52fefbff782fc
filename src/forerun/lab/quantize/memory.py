"""How much memory a quantizing job takes at most, beside what the process has before it. Sizes in bytes.

That is where freed memory goes back to the system at once (`core.device.return_at_once`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forerun.lab.quantize.block import READERS, matrices_of
from forerun.model.config import ModelConfig

_ALLOWANCE = 33_000_000
"""Parts of torch that are loaded when first used, and gaps between what is held: measured."""
_TOKEN_NBYTES = 650
"""Of each token of a vocabulary, while tokenizer.json is made of a GGUF's: measured."""
_MATRIX_COPIES = 3
"""Of the matrix that is rounded, fp32: what is lacking, codes, values."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What a block of the model and its calibration take, fp32."""

    weights: int
    """All of them."""
    largest: int
    """The matrix with the most weights."""
    site: int
    """The matrices that read the same inputs, where they have the most weights."""
    grams: int
    """Gram matrices of all inputs."""
    widest: int
    """That of the widest."""
    routed: int
    """What is kept of each token for experts."""
    scaled: int
    """Of experts all are scaled at once."""
    passing: int
    """What one text leaves behind on its way."""

    @classmethod
    def of(cls, config: ModelConfig, length: int) -> _Block:
        layers = [matrices_of(config, i) for i in range(config.num_layers)]
        sizes = [{n: 4 * math.prod(s) for n, s in shapes.items()} for shapes in layers]
        experts = [config.layer(i).experts for i in range(config.num_layers)]
        # Experts are rounded one at a time.
        each = [
            {n: size // (e.num_experts if e and "expert_" in n else 1) for n, size in of.items()}
            for of, e in zip(sizes, experts, strict=True)
        ]
        sites = [sum(of.get(n, 0) for n in names) for of in each for names in READERS.values()]
        scaled = max(size for of in sizes for size in of.values()) if any(experts) else 0
        width, inner = config.hidden_size, config.intermediate_size
        out, down = (
            max((of[name][1] for of in layers if name in of), default=width)
            for name in ("o", "down")
        )
        widths = (width, out, width, down)
        return cls(
            weights=max(sum(of.values()) for of in sizes),
            largest=max(size for of in each for size in of.values()),
            routed=4 * width * any(map(bool, experts)),
            scaled=scaled,
            site=max(sites),
            grams=sum(4 * size**2 for size in widths),
            widest=4 * max(widths) ** 2,
            passing=4 * length * (8 * width + 4 * inner),
        )


def awq_nbytes(config: ModelConfig, *, num_tokens: int, length: int, is_calibrated: bool) -> int:
    """Estimate the bytes of rounding with AWQ or to nearest: hidden states of `num_tokens`, in texts of `length`."""
    block = _Block.of(config, length)
    grams = block.grams + 2 * block.widest if is_calibrated else 0
    rounding = block.weights + grams + _MATRIX_COPIES * block.largest
    if is_calibrated:
        rounding += block.scaled + block.routed * num_tokens
    observing = block.weights + block.grams * is_calibrated + block.passing
    advancing = block.weights * 5 // 4 + block.passing  # codes, and their values
    states = 4 * config.hidden_size * num_tokens
    return _at_most(config, states + max(rounding, observing, advancing))


def flatten_nbytes(config: ModelConfig, *, num_tokens: int, length: int) -> int:
    """Estimate the bytes of FlattenQuant: hidden states of `num_tokens`, probes included, in texts of `length`."""
    block = _Block.of(config, length)
    codes = block.weights // 2  # of 4 and of 8 bits, a byte each
    rounding = block.grams + 3 * block.widest + 3 * block.site
    passing = block.weights + block.passing  # of the flattened block
    states = 4 * config.hidden_size * num_tokens
    return _at_most(config, states + block.weights + codes + max(rounding, passing))


def _at_most(config: ModelConfig, rounding: int) -> int:
    """Return the larger of rounding, and of writing the tokenizer when states and blocks are gone."""
    return max(rounding, _TOKEN_NBYTES * config.vocab_size) + _ALLOWANCE
