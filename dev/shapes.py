"""Write a GGUF of random weights in the shape of a model that people run, to measure speed, memory and loading.

    python -m dev.shapes TOKENIZER.gguf OUT.gguf SHAPE [--layers N] [--alike N]

The tokenizer is that of another file, with names added up to the shape's vocabulary. Text is noise and no draft is
right: it is for passes. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as Quant

from dev.shape_file import FULL_EVERY, STATE_DIM, STATE_KEYS, Shape, Writer
from forerun.weights.gguf import GgufCheckpoint

GEMMA_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
GEMMA_MOE_NORMS = (*GEMMA_NORMS, "post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
GEMMA4 = {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0}
QWEN35 = {
    "rope.freq_base": 1e7,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "full_attention_interval": FULL_EVERY,
    "ssm.conv_kernel": 4,
    "ssm.group_count": STATE_KEYS,
    "ssm.state_size": STATE_DIM,
}
QWEN35_NORMS = ("attn_norm", "post_attention_norm")
SHAPES = {
    "qwen3-8b": Shape(
        *("qwen3", 151_936, 36, 4096, 12_288, 32, 8, 128, 40_960),
        qk_norm=128,
        extra={"rope.freq_base": 1e6},
    ),
    "qwen3-30b-a3b": Shape(
        *("qwen3moe", 151_936, 48, 2048, 6144, 32, 4, 128, 40_960),
        experts=128,
        active=8,
        expert_inner=768,
        qk_norm=128,
        extra={"rope.freq_base": 1e6},
    ),
    "qwen3.5-2b": Shape(
        *("qwen35", 248_320, 24, 2048, 6144, 8, 2, 256, 262_144),
        tied=True,
        norms=QWEN35_NORMS,
        qk_norm=256,
        state_heads=16,
        extra=QWEN35 | {"ssm.time_step_rank": 16, "ssm.inner_size": 16 * STATE_DIM},
    ),
    "qwen3.5-4b": Shape(
        *("qwen35", 248_320, 32, 2560, 9216, 16, 4, 256, 262_144),
        tied=True,
        norms=QWEN35_NORMS,
        qk_norm=256,
        state_heads=32,
        extra=QWEN35 | {"ssm.time_step_rank": 32, "ssm.inner_size": 32 * STATE_DIM},
    ),
    "qwen3.5-35b-a3b": Shape(
        *("qwen35moe", 248_320, 40, 2048, 512, 16, 2, 256, 262_144),
        experts=256,
        active=8,
        expert_inner=512,
        shared_expert=True,
        norms=QWEN35_NORMS,
        qk_norm=256,
        state_heads=32,
        extra=QWEN35 | {"ssm.time_step_rank": 32, "ssm.inner_size": 32 * STATE_DIM},
    ),
    "gemma-3-4b": Shape(
        *("gemma3", 262_208, 34, 2560, 10_240, 8, 4, 256),
        tied=True,
        norms=GEMMA_NORMS,
        qk_norm=256,
        extra={"attention.sliding_window": 1024, "rope.freq_base": 1e6},
    ),
    "gemma-4-e4b": Shape(
        *("gemma4", 262_144, 42, 2560, 10_240, 8, 2, 256),
        tied=True,
        norms=GEMMA_NORMS,
        qk_norm=256,
        wide=(512, 2),
        shared_kv=18,
        per_layer=256,
        extra=GEMMA4 | {"attention.sliding_window": 512},
    ),
    "gemma-4-26b-a4b": Shape(
        *("gemma4", 262_144, 30, 2816, 2112, 16, 8, 256, 262_144),
        tied=True,
        experts=128,
        active=8,
        expert_inner=704,
        norms=GEMMA_MOE_NORMS,
        qk_norm=256,
        wide=(512, 2),
        keys_are_values=True,
        extra=GEMMA4 | {"attention.sliding_window": 1024},
    ),
    "llama-3.1-8b": Shape(
        *("llama", 128_256, 32, 4096, 14_336, 32, 8, 128), extra={"rope.freq_base": 5e5}
    ),
    "olmoe-1b-7b": Shape(
        *("olmoe", 50_304, 16, 2048, 1024, 16, 16, 128, 4096), experts=64, active=8, qk_norm=2048
    ),
    "gpt-oss-20b": Shape(
        *("gpt-oss", 201_088, 24, 2880, 2880, 64, 8, 64),
        matrices=Quant.Q8_0,
        experts=32,
        active=4,
        norms=("attn_norm", "post_attention_norm"),
        biases=True,
        extra={"attention.sliding_window": 128, "rope.freq_base": 150_000.0}
        | {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}
        | {"rope.scaling.original_context_length": 4096},
    ),
}


def tokenizer_of(path: Path, shape: Shape) -> Mapping[str, object]:
    """Read the metadata of a file whose tokenizer fits the shape. Exits, saying why, if there is none."""
    if not path.is_file():
        sys.exit(f"there is no file {path}")
    metadata = GgufCheckpoint(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        sys.exit(f"{path} has no tokenizer: take the file of a whole model")
    if len(tokens) > shape.vocab:
        sys.exit(
            f"{path} has {len(tokens)} tokens, the shape has room for {shape.vocab}: take a smaller tokenizer"
        )
    return metadata


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument(
        "--alike", type=int, default=0, help="experts that all rows choose (gpt-oss alone)"
    )
    given = parser.parse_args()
    shape = replace(SHAPES[given.shape], alike=given.alike)
    if given.alike and not shape.biases:
        sys.exit(f"{given.shape} has routers without biases: leave out --alike")
    if not 0 <= given.alike <= shape.active:
        sys.exit(f"--alike must be 0 to the {shape.active} active experts, got {given.alike}")
    tokenizer = tokenizer_of(given.tokenizer, shape)
    writer = Writer(given.out, shape, given.layers or shape.layers)
    writer.tokenizer(tokenizer)
    writer.sizes()
    writer.write()


if __name__ == "__main__":
    main()
