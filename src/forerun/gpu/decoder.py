"""The decoder on a GPU: the kernels' launches in the order of `csrc/model`, whose bits it has.

Tokens are looked up on the host. States stay on the device until they are read, and logits until they are asked for:
a step waits for the tokens that are chosen there, and for nothing else.

R rows of the pass, M rows that need logits, D hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch
from forerun.core.config import Precision
from forerun.core.errors import CapacityError, DeviceMemoryError, LoadError
from forerun.core.types import TopK
from forerun.gpu.cache import GpuCache
from forerun.gpu.cache import Layer as CacheLayer
from forerun.gpu.choice import finish, top_k
from forerun.gpu.experts import Experts
from forerun.gpu.graphs import ROWS as GRAPH_ROWS
from forerun.gpu.graphs import RUNS as GRAPH_RUNS
from forerun.gpu.graphs import Graphs
from forerun.gpu.host import DeviceHidden, to_device, to_host
from forerun.gpu.layers import Buffers, Layer, Norm, put_norm
from forerun.gpu.matrices import ROWS, Matrix, Part, Stack
from forerun.gpu.passes import Angles, Pass, plan, run_starts
from forerun.model.backends import native
from forerun.model.backends.base import BlankWeight
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import blocks_of
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig, RopeConfig
from forerun.model.model import HeadPart, Hidden, Noises
from forerun.model.packing import ActOrder
from forerun.system.device import num_threads
from forerun.weights.codes import FORMATS
from forerun.weights.stored import StoredTensor, stored_floats

_STACKS = {"qkv": ("q", "k", "v"), "up": ("gate", "up"), "o": ("o",), "down": ("down",)}
"""Matrices that read the same rows, in the order of their outputs."""
_EXPERTS = ("router", "expert_gate", "expert_up", "expert_down")
"""Those of experts, each by itself."""


class GpuDecoder:
    """A model on one device. Implements `model.model.Model`, and `model.packing.Packs` to be given its weights."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cuda") -> None:
        self.config, self.device = config, torch.device(device)
        self._stacks: dict[str, Stack] = {}
        self._norms: dict[str, Norm] = {}
        self._waiting: dict[str, Part] = {}
        """Matrices whose neighbours have not come yet."""
        self._act_order = ActOrder(config)
        self._host: dict[str, StoredTensor] = {}
        """The embedding, the head and the positions, which stay where they are."""
        self._planned: list[BlankWeight] = []
        """The first two of them where there are no weights."""
        self.layers: list[Layer] = []
        self._angles: dict[RopeConfig, Angles] = {}
        self._buffers = Buffers(self.device)
        self.graphs = Graphs(self) if self.device.type == "cuda" else None
        """What launches short passes; None: kernel by kernel."""

    def add(self, name: str, stored: StoredTensor, bias: StoredTensor | None) -> None:
        """Take one weight, by its canonical name. Raises LoadError for a format that is not read."""
        if name in ("embed", "positions"):
            self._host[name] = stored.unpacked()
        elif len(stored.shape) == 1:
            offset = None if bias is None else self.to_device(bias.dequantize())
            self._norms[name] = Norm(self.to_device(stored.dequantize()), offset)
        elif name == "head":
            self._host[name] = stored.unpacked()
            self._stacks[name] = Stack.pack([(self._host[name].in_order(), bias)], self.device)
        else:
            stored = stored.unpacked()
            codes = None if stored.read is None else stored.codes()
            if not self._act_order.take(name, stored.format, codes):
                stored = stored.in_order()
            self._waiting[name] = stored, bias
            self._pack_complete(name.rpartition(".")[0])
        if self._is_head(name):
            self._stacks["head"] = Stack.pack([(stored, None)], self.device)

    def _is_head(self, name: str) -> bool:
        """Return whether the embedding is the head too, and none of fewer bits came before it."""
        return name == "embed" and self.config.tied_head and "head" not in self._stacks

    def _pack_complete(self, prefix: str) -> None:
        """Pack the matrices of a layer whose neighbours are all there."""
        for stack, shorts in (*_STACKS.items(), *((name, (name,)) for name in _EXPERTS)):
            if stack == "up" and not self.config.gated_mlp:
                shorts = ("up",)
            names = [f"{prefix}.{short}" for short in shorts]
            if all(name in self._waiting for name in names):
                parts = [self._waiting.pop(name) for name in names]
                self._stacks[f"{prefix}.{stack}"] = Stack.pack(parts, self.device)

    def add_blank(
        self,
        name: str,
        form: str | None,
        shape: Sequence[int],
        has_bias: bool,
        is_apart: bool = False,
    ) -> list[np.ndarray]:
        """Make room for a weight, on the device `meta`; there is nothing on the host to be filled."""
        if form is None:
            weight = torch.empty(*shape, device=self.device)
            self._norms[name] = Norm(weight, weight if has_bias else None)
            return []
        if name in ("embed", "head"):
            self._planned.append(BlankWeight(name, tuple(shape), FORMATS[form], False))
        if name not in ("embed", "positions") or self._is_head(name):
            made = Matrix.blank(FORMATS[form], shape[0], shape[1], None, has_bias, self.device)
            self._stacks["head" if name == "embed" else name] = Stack((made,))
        return []

    @cached_property
    def host_decoder(self) -> native.NativeDecoder:
        """The embedding and the head on the host's kernels, made when `head_weights` is asked for."""
        known = self._host.keys() | {each.name for each in self._planned}
        config = self.config.without_layers(tied_head="head" not in known)
        if self._planned:
            norm = BlankWeight("norm", (config.hidden_size,), FORMATS["f32"], False)
            return native.blank(config, [*self._planned, norm])
        weights = {name: self._host[name] for name in ("embed", "head") if name in self._host}
        ones = stored_floats("norm", np.ones(config.hidden_size, np.float32))  # no pass reads it
        return native.load(config, weights | {"norm": ones})

    def finish(self) -> None:
        """Put the layers together, once all weights are there. Raises LoadError for one that has no place."""
        if self._waiting:
            raise LoadError(f"a GPU does not read {', '.join(self._waiting)}; use --device cpu")
        for index in range(self.config.num_layers):
            self.layers.append(self._layer(index))

    def _layer(self, index: int) -> Layer:
        config, prefix = self.config, f"layers.{index}."
        norms = {
            n.removeprefix(prefix): norm for n, norm in self._norms.items() if n.startswith(prefix)
        }
        rope = config.layer(index).rope
        if rope is not None and rope not in self._angles:
            self._angles[rope] = Angles(rope, self.device)
        head_norms = None
        if config.qk_norm in ("head", "each"):
            kv_heads, dim = config.heads(index)
            counts = (("q_norm", config.num_heads), ("k_norm", kv_heads))
            head_norms = torch.cat(
                [norms[name].weight.view(-1, dim).expand(n, dim) for name, n in counts]
            )
        angles = None if rope is None else self._angles[rope]
        qkv, up = self._stacks[prefix + "qkv"], self._stacks.get(prefix + "up")
        if config.norms == "parallel" and any(
            each and each.order is not None for each in (qkv, up)
        ):
            raise LoadError(
                f"attention and MLP of layer {index} read the same rows, in an order of columns that a GPU has not for "
                "both; use --device cpu"
            )
        return Layer(
            config, index, norms, qkv, self._stacks[prefix + "o"], up, self._stacks.get(prefix + "down"),
            experts=self._experts(index, norms), angles=angles, head_norms=head_norms,
        )  # fmt: skip

    def _experts(self, index: int, norms: Mapping[str, Norm]) -> Experts | None:
        shape = self.config.layer(index).experts
        if shape is None:
            return None
        stacks = (self._stacks.get(f"layers.{index}.{name}") for name in _EXPERTS)
        router, gate, up, down = (None if stack is None else stack.parts[0] for stack in stacks)
        assert router is not None
        assert up is not None
        assert down is not None
        bias = norms["choice_bias"].weight if shape.has_choice_bias else None
        return Experts(shape, router, gate, up, down, bias)

    def forward(
        self,
        batch: Batch,
        cache: KVCache,
        aux_layers: tuple[int, ...] = (),
        inputs: Floats | None = None,
    ) -> DeviceHidden:
        """Compute the batch's rows; their keys and values are left in the cache as scratch rows.

        Nothing is waited for. Raises CapacityError if a row does not fit the cache, the model's context, or the device
        has no memory left.
        """
        assert isinstance(cache, GpuCache)
        last = int(batch.positions().max(initial=0))
        if last >= self.config.max_position:
            raise CapacityError(
                f"position {last} is beyond the model's context of {self.config.max_position} tokens: "
                "allow a longer context or stop earlier"
            )
        if batch.num_rows == 0:
            none = torch.empty(1 + len(aux_layers), 0, self.config.hidden_size, device=self.device)
            return DeviceHidden(none)
        given = self.embed(batch.tokens()) if inputs is None else inputs
        parts, first = [], 0
        try:
            with self.current():
                for part in cache.parts(batch, ROWS):
                    rows = given[first : first + part.num_rows]
                    parts.append(self._run(part, rows, cache, aux_layers).clone())
                    first += part.num_rows
                return DeviceHidden(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{self.device} has no memory left for a pass of {batch.num_rows} rows: ask for less context, or allow "
                "fewer sequences (--max-num-seqs)"
            ) from error

    def _run(
        self, batch: Batch, inputs: Floats, cache: GpuCache, aux_layers: tuple[int, ...]
    ) -> Tensor:
        """Return the state of each row at the end, then behind the layers that are asked for (1 + n, R, D).

        The next pass overwrites them.
        """
        given = self._with_positions(inputs, batch)
        if self.graphs is not None:
            states = self.graphs.run(batch, given, cache, aux_layers)
            if states is not None:
                return states
        rows = plan(batch, cache, self.config, self.device)
        return self.launch(self.to_device(given), rows, cache.layers, aux_layers, self._buffers)

    def launch(
        self, given: Tensor, rows: Pass, cache: Sequence[CacheLayer], aux_layers: tuple[int, ...], buffers: Buffers
    ) -> Tensor:  # fmt: skip
        """Launch the kernels of a pass; return the states of `_run`, in a buffer, of its rows (R, D)."""
        num, width = len(given), self.config.hidden_size
        states = buffers.floats("states", 1 + len(aux_layers), num, width)
        x, attention = self._begin(given, buffers)
        for index, layer in enumerate(self.layers):
            layer.run(x, rows, cache[index], buffers, attention)
            for i, wanted in enumerate(aux_layers):
                if wanted == index:
                    states[1 + i] = x[:num]
        put_norm(x, self._norms["norm"], self.config, num, out=states[0])
        return states

    def _begin(self, given: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        """Return rows (ROWS, D) as they go into the layers, and what attention reads instead of these, if it does."""
        x = buffers.floats("x", ROWS, self.config.hidden_size)
        x[: len(given)] = given
        return x, None

    @property
    def input_width(self) -> int:
        """The width of the rows that a pass is given."""
        return self.config.hidden_size

    def _with_positions(self, inputs: Floats, batch: Batch) -> Floats:
        offset = self.config.learned_position_offset
        if offset is None:
            return np.ascontiguousarray(inputs, np.float32)
        return inputs + self._host["positions"].rows(batch.positions() + offset).dequantize()

    def embed(self, ids: Ids) -> Floats:
        """Embed tokens (R,) as (R, D), positions left out."""
        rows = self._host["embed"].rows(np.asarray(ids, np.int64)).dequantize()
        return (
            rows
            if self.config.embedding_multiplier == 1
            else rows * np.float32(self.config.embedding_multiplier)
        )

    def head(self, hidden: Floats) -> Floats:
        """Return the logits (M, V) of hidden states (M, D)."""
        return self._read_head(hidden, self.head_of(None))

    def _read_head(self, hidden: Floats, head: Matrix) -> Floats:
        logits = np.empty((len(hidden), head.num_out), np.float32)
        for here, part in self._logits(self.to_device(np.asarray(hidden, np.float32)), head):
            logits[here] = to_host(part)
        return logits

    def head_of(self, ids: Ids | None) -> Matrix:
        """Return the head's matrix: a copy of the rows of some tokens (n,), or of all the one that there is.

        Raises ValueError for no tokens, or one that there is not.
        """
        (head,) = self._stacks["head"].parts
        if ids is None:
            return head
        if not len(ids) or min(ids) < 0 or max(ids) >= self.config.vocab_size:
            raise ValueError("tokens of a head must be some of the vocabulary")
        with self.current():
            return head.outputs(self.to_device(np.asarray(ids, np.int64)))

    def _logits(self, hidden: Tensor, head: Matrix) -> Iterator[tuple[slice, Tensor]]:
        """Yield logits (at most ROWS, outputs of the head) on the device, and of which rows they are."""
        config = self.config
        read = self._buffers.read("normed", config.hidden_size)
        for start in range(0, len(hidden), ROWS):
            here = slice(start, start + ROWS)
            with self.current():
                rows = hidden[here]
                read.floats[: len(rows)] = rows
                if head.reads_codes:
                    put_norm(read.floats, None, config, len(rows), to=read, readers=(head,))
                logits = torch.empty(len(rows), head.num_out, device=self.device)
                head.multiply(read, len(rows), logits)
                finish(logits, config)
                yield here, logits

    def topk(
        self, hidden: Floats, k: int, *, log_normaliser: bool = False, logits: Floats | None = None
    ) -> TopK:
        """Return the k likeliest tokens of each row; see `model.model.Model`. For few no logits leave the device."""
        states = self.to_device(np.asarray(hidden, np.float32))
        return self._choose(states, k, log_normaliser, (), logits)[0]

    def topk_and_draw(
        self,
        hidden: Hidden,
        rows: Sequence[int],
        k: int,
        noises: Noises = (),
        *,
        log_normaliser: bool = False,
        logits: Floats | None = None,
    ) -> tuple[TopK, list[int]]:
        """Return the k likeliest tokens of some rows, and drawn ones, without their states; see `model.model.Draws`."""
        assert isinstance(hidden, DeviceHidden)
        states = hidden.states[0]
        if not rows:
            to_host(states[-1:, :1])  # so that times are those of whole passes
        elif len(rows) < len(states):
            with self.current():
                states = states.index_select(0, self.to_device(np.array(rows)))
        return self._choose(states[: len(rows)], k, log_normaliser, noises, logits)

    def _choose(
        self, hidden: Tensor, k: int, log_normaliser: bool, noises: Noises, logits: Floats | None
    ) -> tuple[TopK, list[int]]:
        if not 1 <= k <= self.config.vocab_size:
            raise ValueError(f"k must be 1 to {self.config.vocab_size}, got {k}")
        num = len(hidden)
        ids, values = np.empty((num, k), np.int64), np.empty((num, k), np.float32)
        norm, drawn = np.empty(num, np.float32) if log_normaliser else None, list[int]()
        for here, part in self._logits(hidden, self.head_of(None)):
            found, tokens = top_k(part, k, log_normaliser=log_normaliser, noises=noises[here])
            drawn += tokens
            ids[here], values[here] = found.ids, found.values
            if norm is not None:
                norm[here] = found.log_normaliser
            if logits is not None:
                logits[here] = to_host(part)
        return TopK(ids, values, norm), drawn

    def head_rows(self, hidden: Floats, ids: Ids) -> Floats:
        """Return the logits (M, n) of some tokens (n,), those columns of `head(hidden)`."""
        return self.head(hidden)[:, ids]

    def head_weights(self, ids: Ids | None) -> Floats:
        """Return the head's rows (n, D) of some tokens (n,), None for all; a soft cap is left out."""
        return self.host_decoder.head_weights(ids)

    def head_part(self, ids: Ids) -> HeadPart:
        """Return a copy of the rows of some tokens (n,). Raises ValueError for none, or one that there is not."""
        part = self.head_of(ids)
        return HeadPart(lambda hidden: self._read_head(hidden, part), part.nbytes())

    def new_cache(
        self,
        num_slots: int,
        max_len: int,
        kv: Precision = "auto",
        num_blocks: int | None = None,
        num_checkpoints: int | None = None,
        draft_rows: int = DRAFT_ROWS,
    ) -> GpuCache:
        """Return a cache that fits this model; `auto` is fp16."""
        return GpuCache(self.config, num_slots, max_len, kv, num_blocks, self.device)

    @property
    def num_threads(self) -> int:
        """Threads of the host; none of them computes rows."""
        return num_threads()

    def nbytes(self) -> int:
        """Return the bytes of the weights on the device."""
        return sum(self.weight_nbytes().values())

    def weight_nbytes(self) -> dict[str, int]:
        """Return the bytes of each weight on the device, of matrices that read the same rows together."""
        norms = {name: norm.nbytes() for name, norm in self._norms.items()}
        return norms | {name: stack.nbytes() for name, stack in self._stacks.items()}

    def scratch_nbytes(self, cache: KVCache, num_rows: int, num_nodes: int, head_rows: int) -> int:
        """Return the bytes on the device of rows and states of attention in a full cache, and of logits."""
        config, rows = self.config, min(num_rows, ROWS)
        layers = range(config.num_layers)
        heads = max(config.num_heads * config.heads(i)[1] for i in layers)
        kv = max(2 * math.prod(config.heads(i)) for i in layers)
        inner = max(config.layer(i).intermediate_size or config.intermediate_size for i in layers)
        width = 2 * config.hidden_size + 3 * heads + kv + 3 * inner
        coded = 2 * (config.hidden_size + heads + inner)
        runs = len(run_starts(blocks_of(cache.max_len))) - 1
        states = (rows * runs + GRAPH_ROWS[-1] * GRAPH_RUNS[-1]) * (heads + 2 * config.num_heads)
        experts = [each for i in layers if (each := config.layer(i).experts) is not None]
        of_pairs = max(
            (e.num_active * (4 * config.hidden_size + 13 * e.intermediate_size) for e in experts),
            default=0,
        )
        of_rows = 2 * ROWS * (4 * width + coded + of_pairs)  # once more for graphs
        of_states = 8 * num_rows * config.hidden_size  # what the head reads, and its parts before
        return of_rows + of_states + 4 * states + 4 * min(head_rows, ROWS) * config.vocab_size

    def current(self) -> AbstractContextManager[object]:
        """Make the device the one on which kernels are launched."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def to_device(self, numbers: np.ndarray) -> Tensor:
        """Copy numbers to the device."""
        return to_device(numbers, self.device)
