"""Write a GGUF of random blocks, at the disk's speed: the tensors of a `dev.shapes.Shape`, streamed in pieces.

Codes are random and scales keep a layer's output near its input's size. A tensor reads a loop of blocks, made once by
format and width, from a place of its own: the loop's length is a prime, so rows of one matrix differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quant

NUM_BLOCKS = 131_071
"""Of a loop."""
NARROWER = {Quant.Q4_K: Quant.Q5_0, Quant.Q6_K: Quant.Q8_0}
"""What takes the place of a format whose blocks do not fit a width."""
STATE_KEYS, STATE_DIM, FULL_EVERY = 16, 128, 4
WIDE_EVERY = 6


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
    """Of layers with a window, where others have heads of their own."""
    context: int = 131_072
    matrices: Quant = Quant.Q4_K
    tied: bool = False
    experts: int = 0
    active: int = 0
    expert_inner: int = 0
    """0: `inner`, and there is no other MLP."""
    shared_expert: bool = False
    """A dense MLP of `expert_inner`, with a gate."""
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    qk_norm: int = 0
    """Its width, of a head or of all; 0: none."""
    biases: bool = False
    alike: int = 0
    """Experts that every row chooses, among the active ones, by the routers' biases."""
    state_heads: int = 0
    """Heads of values with a state, in three layers of four; 16 of keys, all 128 wide. 0: attention alone."""
    wide: tuple[int, int] = (0, 0)
    """Size and number of the kv heads of every sixth layer, which has no window; 0: as in all others."""
    keys_are_values: bool = False
    """Of those layers."""
    shared_kv: int = 0
    """The last layers, which read the keys and values of others."""
    per_layer: int = 0
    """Width of per-layer embeddings."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def is_wide(self, layer: int) -> bool:
        """Tell whether a layer is one of those of `wide`."""
        return self.wide[0] > 0 and (layer + 1) % WIDE_EVERY == 0


def loop(kind: Quant, rng: np.random.Generator, columns: int) -> np.ndarray:
    """Return random blocks (NUM_BLOCKS, bytes) of a format, of weights of about 1 / sqrt(columns)."""
    _, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (NUM_BLOCKS, nbytes), dtype=np.uint8)
    step = columns**-0.5
    halves: Mapping[Quant, dict[int, float]] = {
        Quant.Q4_K: {0: step / 150, 2: step / 20},
        Quant.Q5_0: {0: step / 9},
        Quant.Q6_K: {208: step / 1200},
        Quant.Q8_0: {0: step / 73},
    }
    if kind == Quant.MXFP4:
        data[:, 0] = 127 + round(np.log2(step / 3))
    for byte, value in halves.get(kind, {}).items():
        data[:, byte : byte + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    return data


class Writer:
    """A file under way: tensors are named first, then written one after the other."""

    def __init__(self, path: Path, shape: Shape, num_layers: int) -> None:
        self.shape, self.num_layers, self.rng = shape, num_layers, np.random.default_rng(0)
        self.gguf = gguf.GGUFWriter(str(path), shape.architecture)
        self._loops: dict[tuple[Quant, int], np.ndarray] = {}
        self._tensors: list[np.ndarray | tuple[Quant, int, int]] = []

    def tokenizer(self, metadata: Mapping[str, object]) -> None:
        """Copy that of another file, and add unused tokens."""
        fill = {"token_type": 5, "scores": -1e6}
        for name, value in metadata.items():
            if not name.startswith("tokenizer."):
                continue
            short = name.removeprefix("tokenizer.ggml.")
            if isinstance(value, list) and short in ("tokens", "token_type", "scores"):
                more = range(self.shape.vocab - len(value))
                value = [*value, *(fill.get(short, f"<no token {i}>") for i in more)]
            self._number(name, value)

    def sizes(self) -> None:
        """Write the numbers of the model."""
        shape, add, layers = self.shape, self.gguf, range(self.num_layers)
        dim, kv_heads = shape.wide
        add.add_block_count(self.num_layers)
        add.add_context_length(shape.context)
        add.add_embedding_length(shape.width)
        add.add_feed_forward_length(shape.inner)
        add.add_head_count(shape.heads)
        add.add_head_count_kv(
            [kv_heads if shape.is_wide(i) else shape.kv_heads for i in layers]
            if dim
            else shape.kv_heads
        )
        add.add_key_length(dim or shape.head_dim)
        add.add_value_length(dim or shape.head_dim)
        add.add_layer_norm_rms_eps(1e-6)
        if shape.experts:
            add.add_expert_count(shape.experts)
            add.add_expert_used_count(shape.active)
            add.add_expert_feed_forward_length(shape.expert_inner or shape.inner)
        if shape.shared_expert:
            add.add_expert_shared_feed_forward_length(shape.expert_inner)
        extra = dict(shape.extra)
        if dim:
            extra |= dict.fromkeys(
                ("attention.key_length_swa", "attention.value_length_swa"), shape.head_dim
            )
            extra["attention.sliding_window_pattern"] = [not shape.is_wide(i) for i in layers]
        if shape.shared_kv:
            extra["attention.shared_kv_layers"] = self.num_layers - self.num_own_kv()
        if shape.per_layer:
            extra["embedding_length_per_layer_input"] = shape.per_layer
        for key, each in extra.items():
            self._number(f"{shape.architecture}.{key}", each)

    def num_own_kv(self) -> int:
        """Count the layers with keys and values of their own; each kind has one."""
        shared = self.shape.shared_kv * self.num_layers // self.shape.layers
        return max(self.num_layers - shared, WIDE_EVERY if shared else 0)

    def _number(self, name: str, value: object) -> None:
        add = self.gguf
        if isinstance(value, str):
            add.add_string(name, value)
        elif isinstance(value, bool):
            add.add_bool(name, value)
        elif isinstance(value, list):
            add.add_array(name, value)
        elif isinstance(value, float):
            add.add_float32(name, value)
        else:
            add.add_uint32(name, cast(int, value))

    def numbers(self, name: str, values: np.ndarray) -> None:
        """Add a tensor of fp32 numbers."""
        self.gguf.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
        self._tensors.append(values)

    def vector(self, name: str, size: int | tuple[int, ...], value: float = 1.0) -> None:
        """Add a tensor of one number."""
        self.numbers(name, np.full(size, value, np.float32))

    def matrix(
        self, name: str, rows: int, columns: int, kind: Quant | None = None, num_experts: int = 0
    ) -> None:
        """Add a matrix, or one of each expert."""
        kind = self.shape.matrices if kind is None else kind
        if columns % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = NARROWER[kind]
        count, nbytes = gguf.GGML_QUANT_SIZES[kind]
        row = columns // count * nbytes
        shape = (num_experts, rows, row) if num_experts else (rows, row)
        num_blocks = int(np.prod(shape, dtype=np.int64)) // nbytes
        self.gguf.add_tensor_info(name, shape, np.dtype(np.uint8), num_blocks * nbytes, kind)
        self._tensors.append((kind, columns, num_blocks))

    def write(self) -> None:
        """Name all tensors, and write the file."""
        self._name()
        writer = self.gguf
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        out = cast(BinaryIO, writer.fout[0])
        for tensor in self._tensors:
            writer.write_padding(out, out.tell())
            for piece in (tensor,) if isinstance(tensor, np.ndarray) else self._pieces(*tensor):
                out.write(np.ascontiguousarray(piece).data)
        writer.write_padding(out, out.tell())
        writer.close()

    def _pieces(self, kind: Quant, columns: int, num_blocks: int) -> Iterator[np.ndarray]:
        key = kind, columns
        if key not in self._loops:
            self._loops[key] = loop(kind, self.rng, columns)
        start = int(self.rng.integers(NUM_BLOCKS))
        while num_blocks > 0:
            piece = self._loops[key][start : start + num_blocks]
            yield piece
            start, num_blocks = 0, num_blocks - len(piece)

    def _name(self) -> None:
        shape = self.shape
        head = Quant.Q6_K if shape.matrices == Quant.Q4_K else Quant.Q8_0
        self.matrix("token_embd.weight", shape.vocab, shape.width, head if shape.tied else None)
        self.vector("output_norm.weight", shape.width)
        if not shape.tied:
            self.matrix("output.weight", shape.vocab, shape.width, head)
        if own := shape.per_layer:
            self.matrix("per_layer_token_embd.weight", shape.vocab, self.num_layers * own)
            self.matrix("per_layer_model_proj.weight", self.num_layers * own, shape.width)
            self.vector("per_layer_proj_norm.weight", own)
        for i in range(self.num_layers):
            self._layer(i, f"blk.{i}.")

    def _layer(self, i: int, name: str) -> None:
        """Add all tensors of a layer; every other one has v and down in more bits, as Q4_K_M has."""
        shape = self.shape
        more = Quant.Q6_K if i % 2 and shape.matrices == Quant.Q4_K else None
        for norm in shape.norms:
            self.vector(f"{name}{norm}.weight", shape.width)
        if shape.state_heads and (i + 1) % FULL_EVERY:
            self._recurrent(name)
        else:
            self._attention(i, name, more)
        if own := shape.per_layer:
            self.matrix(f"{name}inp_gate.weight", own, shape.width)
            self.matrix(f"{name}proj.weight", shape.width, own)
            self.vector(f"{name}post_norm.weight", shape.width)
        if shape.architecture == "gemma4":
            self.vector(f"{name}layer_output_scale.weight", 1)
        if shape.experts:
            self._experts(name, more)
        if shape.experts and not shape.expert_inner:
            return
        if shape.architecture == "qwen3moe":
            return
        suffix, inner = ("_shexp", shape.expert_inner) if shape.shared_expert else ("", shape.inner)
        for part in ("gate", "up"):
            self.matrix(f"{name}ffn_{part}{suffix}.weight", inner, shape.width)
        self.matrix(f"{name}ffn_down{suffix}.weight", shape.width, inner, more)

    def _attention(self, i: int, name: str, more: Quant | None) -> None:
        """Add a layer's attention; beside layers with states it has a gate."""
        shape = self.shape
        dim, kv_heads = shape.wide if shape.is_wide(i) else (shape.head_dim, shape.kv_heads)
        q, kv = shape.heads * dim, kv_heads * dim
        parts = {"q": 2 * q if shape.state_heads else q}
        if has_keys := i < self.num_own_kv():
            parts["k"] = kv
            if not (shape.is_wide(i) and shape.keys_are_values):
                parts["v"] = kv
        if shape.qk_norm:
            size = dim if shape.qk_norm == shape.head_dim else shape.qk_norm
            self.vector(f"{name}attn_q_norm.weight", size)
            if has_keys:
                self.vector(f"{name}attn_k_norm.weight", min(size, kv))
        for part, rows in parts.items():
            kind = more if part == "v" else None
            self.matrix(f"{name}attn_{part}.weight", rows, shape.width, kind)
        self.matrix(f"{name}attn_output.weight", shape.width, q)
        if shape.biases:
            for part, rows in (*parts.items(), ("output", shape.width)):
                self.vector(f"{name}attn_{part}.bias", rows, 0.0)
            self.vector(f"{name}attn_sinks.weight", shape.heads, 0.0)

    def _recurrent(self, name: str) -> None:
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

    def _experts(self, name: str, more: Quant | None) -> None:
        """Add a layer's router and experts."""
        shape = self.shape
        kind = Quant.MXFP4 if shape.architecture == "gpt-oss" else None
        inner = shape.expert_inner or shape.inner
        router = self.rng.standard_normal((shape.experts, shape.width)).astype(np.float32)
        self.numbers(f"{name}ffn_gate_inp.weight", router * np.float32(shape.width**-0.5))
        if shape.shared_expert:
            self.vector(f"{name}ffn_gate_inp_shexp.weight", shape.width, 0.0)
        if shape.architecture == "gemma4":
            self.vector(f"{name}ffn_gate_inp.scale", shape.width)
            self.vector(f"{name}ffn_down_exps.scale", shape.experts)
        for part, rows, columns in (
            ("gate", inner, shape.width),
            ("up", inner, shape.width),
            ("down", shape.width, inner),
        ):
            own = more if part == "down" and more is not None else kind
            tensor = f"{name}ffn_{part}_exps"
            self.matrix(f"{tensor}.weight", rows, columns, own, shape.experts)
            if shape.biases:
                self.vector(f"{tensor}.bias", (shape.experts, rows), 0.0)
        if shape.biases:
            chosen = np.arange(shape.experts) < shape.alike
            self.numbers(f"{name}ffn_gate_inp.bias", 100 * chosen.astype(np.float32))
