"""Write a GGUF of random weights in the shape of a model that people run, to measure speed, memory and loading.

    python -m dev.shapes TOKENIZER.gguf OUT.gguf SHAPE [--layers N]

The tokenizer is that of another file, with names added up to the shape's vocabulary. Codes are random and scales keep
a layer's output near its input's size, so text is noise and no draft is right: it is for passes. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant

Blocks = Callable[[np.random.Generator, int, int], np.ndarray]


@dataclass(frozen=True)
class Shape:
    """A model's sizes, as its config says them."""

    architecture: str
    vocab: int
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    matrices: Quant = Quant.Q4_K
    tied: bool = False
    experts: int = 0
    active: int = 0
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    qk_norm: int = 0
    """Its width, of a head or of all; 0: none."""
    biases: bool = False
    state_heads: int = 0
    """Heads of values with a state, in three layers of four; 16 of keys, all 128 wide. 0: attention alone."""
    extra: Mapping[str, Any] = field(default_factory=dict)


GEMMA_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
STATE_KEYS, STATE_DIM, FULL_EVERY = 16, 128, 4
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
    "qwen3.5-2b": Shape(
        *("qwen35", 248_320, 24, 2048, 6144, 8, 2, 256),
        tied=True,
        norms=QWEN35_NORMS,
        qk_norm=256,
        state_heads=16,
        extra=QWEN35 | {"ssm.time_step_rank": 16, "ssm.inner_size": 16 * STATE_DIM},
    ),
    "qwen3.5-4b": Shape(
        *("qwen35", 248_320, 32, 2560, 9216, 16, 4, 256),
        tied=True,
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
    "llama-3.1-8b": Shape(
        *("llama", 128_256, 32, 4096, 14_336, 32, 8, 128), extra={"rope.freq_base": 5e5}
    ),
    "olmoe-1b-7b": Shape(
        *("olmoe", 50_304, 16, 2048, 1024, 16, 16, 128), experts=64, active=8, qk_norm=2048
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


def blocks(kind: Quant, rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return random blocks (rows, bytes) of a type, of weights of about 1 / sqrt(columns)."""
    count, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows * columns // count, nbytes), dtype=np.uint8)
    step = columns**-0.5
    halves: dict[int, float] = {}
    if kind == Quant.Q4_K:
        halves = {0: step / 150, 2: step / 20}
    elif kind == Quant.Q6_K:
        halves = {208: step / 1200}
    elif kind == Quant.Q8_0:
        halves = {0: step / 73}
    elif kind == Quant.MXFP4:
        data[:, 0] = 127 + round(np.log2(step / 3))
    for byte, value in halves.items():
        data[:, byte : byte + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return data.reshape(rows, columns // count * nbytes)


class Writer:
    """A file under way."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self.shape, self.rng = shape, np.random.default_rng(0)
        self.gguf = gguf.GGUFWriter(str(path), shape.architecture)

    def tokenizer(self, reader: gguf.GGUFReader) -> None:
        """Copy that of another file, and add unused tokens. Exits if it has more than the shape."""
        for entry in reader.fields.values():
            if not entry.name.startswith("tokenizer."):
                continue
            value, kind = entry.contents(), entry.types[0]
            short = entry.name.removeprefix("tokenizer.ggml.")
            if short in ("tokens", "token_type"):
                if len(value) > self.shape.vocab:
                    sys.exit(
                        f"the tokenizer has {len(value)} tokens, the shape {self.shape.vocab}: take a smaller one"
                    )
                more = range(self.shape.vocab - len(value))
                value = [*value, *(f"<unused{i}>" if short == "tokens" else 5 for i in more)]
            sub = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            self.gguf.add_key_value(entry.name, value, kind, sub_type=sub)

    def sizes(self, num_layers: int) -> None:
        """Write the numbers of the model."""
        shape, add = self.shape, self.gguf
        add.add_block_count(num_layers)
        add.add_context_length(4096)
        add.add_embedding_length(shape.width)
        add.add_feed_forward_length(shape.inner)
        add.add_head_count(shape.heads)
        add.add_head_count_kv(shape.kv_heads)
        add.add_key_length(shape.head_dim)
        add.add_value_length(shape.head_dim)
        add.add_layer_norm_rms_eps(1e-6)
        if shape.experts:
            add.add_expert_count(shape.experts)
            add.add_expert_used_count(shape.active)
            add.add_expert_feed_forward_length(shape.inner)
        for key, value in shape.extra.items():
            name = f"{shape.architecture}.{key}"
            if isinstance(value, str):
                add.add_string(name, value)
            elif isinstance(value, list):
                add.add_array(name, value)
            elif isinstance(value, float):
                add.add_float32(name, value)
            else:
                add.add_uint32(name, value)

    def vector(self, name: str, size: int | tuple[int, ...], value: float = 1.0) -> None:
        """Add a tensor of one number."""
        self.gguf.add_tensor(name, np.full(size, value, np.float32))

    def matrix(
        self, name: str, rows: int, columns: int, kind: Quant | None = None, num_experts: int = 0
    ) -> None:
        """Add a matrix, or one of each expert; those of a width without whole blocks as Q8_0."""
        kind = self.shape.matrices if kind is None else kind
        if columns % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = Quant.Q8_0
        data = blocks(kind, self.rng, rows * max(num_experts, 1), columns)
        if num_experts:
            data = data.reshape(num_experts, rows, -1)
        self.gguf.add_tensor(name, data, raw_dtype=kind)

    def layer(self, i: int) -> None:
        """Add all tensors of a layer; every other one has v and down in more bits, as Q4_K_M has."""
        shape, name = self.shape, f"blk.{i}."
        more = Quant.Q6_K if i % 2 and shape.matrices == Quant.Q4_K else None
        for norm in shape.norms:
            self.vector(f"{name}{norm}.weight", shape.width)
        if shape.state_heads and (i + 1) % FULL_EVERY:
            self.recurrent(name)
        else:
            self.attention(name, more)
        if shape.experts:
            self.experts(name, more)
            return
        for part in ("gate", "up"):
            self.matrix(f"{name}ffn_{part}.weight", shape.inner, shape.width)
        self.matrix(f"{name}ffn_down.weight", shape.width, shape.inner, more)

    def attention(self, name: str, more: Quant | None) -> None:
        """Add a layer's attention; beside layers with states it has a gate."""
        shape = self.shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        if shape.qk_norm:
            self.vector(f"{name}attn_q_norm.weight", shape.qk_norm)
            self.vector(f"{name}attn_k_norm.weight", min(shape.qk_norm, kv))
        parts = {"q": 2 * q if shape.state_heads else q, "k": kv, "v": kv}
        for part, rows in parts.items():
            kind = more if part == "v" else None
            self.matrix(f"{name}attn_{part}.weight", rows, shape.width, kind)
        self.matrix(f"{name}attn_output.weight", shape.width, q)
        if shape.biases:
            for part, rows in (*parts.items(), ("output", shape.width)):
                self.vector(f"{name}attn_{part}.bias", rows, 0.0)
            self.vector(f"{name}attn_sinks.weight", shape.heads, 0.0)

    def recurrent(self, name: str) -> None:
        """Add a layer's heads with states."""
        heads, width = self.shape.state_heads, self.shape.width
        values, channels = heads * STATE_DIM, (heads + 2 * STATE_KEYS) * STATE_DIM
        self.matrix(f"{name}attn_qkv.weight", channels, width)
        self.matrix(f"{name}attn_gate.weight", values, width)
        self.matrix(f"{name}ssm_alpha.weight", heads, width, Quant.Q8_0)
        self.matrix(f"{name}ssm_beta.weight", heads, width, Quant.Q8_0)
        self.matrix(f"{name}ssm_out.weight", width, values)
        self.vector(f"{name}ssm_conv1d.weight", (channels, 4), 0.5)
        self.vector(f"{name}ssm_a", heads, -0.05)
        self.vector(f"{name}ssm_dt.bias", heads, 0.0)
        self.vector(f"{name}ssm_norm.weight", STATE_DIM)

    def experts(self, name: str, more: Quant | None) -> None:
        """Add a layer's router and experts."""
        shape = self.shape
        kind = Quant.MXFP4 if shape.architecture == "gpt-oss" else None
        router = self.rng.standard_normal((shape.experts, shape.width)).astype(np.float32)
        self.gguf.add_tensor(f"{name}ffn_gate_inp.weight", router * shape.width**-0.5)
        for part, rows, columns in (
            ("gate", shape.inner, shape.width),
            ("up", shape.inner, shape.width),
            ("down", shape.width, shape.inner),
        ):
            own = more if part == "down" and more is not None else kind
            tensor = f"{name}ffn_{part}_exps"
            self.matrix(f"{tensor}.weight", rows, columns, own, shape.experts)
            if shape.biases:
                self.vector(f"{tensor}.bias", (shape.experts, rows), 0.0)
        if shape.biases:
            self.vector(f"{name}ffn_gate_inp.bias", shape.experts, 0.0)

    def write(self, num_layers: int) -> None:
        """Add the tensors, and write the file."""
        shape = self.shape
        head = Quant.Q6_K if shape.matrices == Quant.Q4_K else Quant.Q8_0
        self.matrix("token_embd.weight", shape.vocab, shape.width, head if shape.tied else None)
        self.vector("output_norm.weight", shape.width)
        if not shape.tied:
            self.matrix("output.weight", shape.vocab, shape.width, head)
        for i in range(num_layers):
            self.layer(i)
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=None)
    given = parser.parse_args()
    shape = SHAPES[given.shape]
    writer = Writer(given.out, shape)
    num_layers = given.layers or shape.layers
    writer.tokenizer(gguf.GGUFReader(given.tokenizer))
    writer.sizes(num_layers)
    writer.write(num_layers)


if __name__ == "__main__":
    main()
