"""CTranslate2: greedy decoding with 8-bit weights and activations. It has no speculation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

NAME = "ctranslate2"
REQUIREMENTS = (
    "ctranslate2==4.8.5",
    "torch==2.13.0",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "gguf==0.19.0",
)
QUANT = "int8"
KEEPS_PREFIXES = False
WAYS = ("plain",)


def convert(gguf: str, checkpoint: Callable[[], str], target: str) -> None:
    """8 bits, a scale for each row of a weight."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(checkpoint()).convert(target, quantization="int8")


def load(
    model: str, way: str, num_threads: int, max_len: int, draft: str | None
) -> Callable[[list[int], int, Callable[[list[int]], None]], None]:
    """Greedy decoding of token ids; it takes the prompt as texts of tokens."""
    import ctranslate2

    texts = json.loads((Path(model) / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(model, inter_threads=1, intra_threads=num_threads)

    def generate(prompt: list[int], num_tokens: int, emit: Callable[[list[int]], None]) -> None:
        steps = generator.generate_tokens(
            [texts[token] for token in prompt], min_length=num_tokens, max_length=num_tokens
        )
        for step in steps:
            emit([step.token_id])

    return generate
