"""Shared by networks that draft natively: how weights get to the kernels, one call a draft.

D width of the target, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.drafting.best_first import MAX_STEPS, GuessTree
from forerun.drafting.networks.drafter import StateNetwork
from forerun.drafting.ngram.ngram_model import AnyNGramModel
from forerun.drafting.tree_noise import TreeNoise, native_noises
from forerun.model.backends.native import NativeDecoder
from forerun.weights.codes import FORMATS
from forerun.weights.rtn import HEAD_BITS, requantize
from forerun.weights.stored import StoredTensor

if TYPE_CHECKING:
    from forerun import _native


@contextmanager
def load_errors() -> Iterator[None]:
    """Raise what the kernels refuse, naming the weight, as a LoadError."""
    try:
        yield
    except ValueError as error:
        raise LoadError(str(error)) from error


def fill(
    network: _native.DraftNetwork,
    tensors: Mapping[str, Tensor],
    target: NativeDecoder,
    *,
    bits: int,
    eps: float,
    tokens: Tensor | None,
    temperatures: Sequence[float],
    takes_head: bool,
) -> None:
    """Hand weights over by the kernels' names, and check them.

    They are matrices, and norms, whose bias is `<name>.bias` where they have one.
    `tokens` (V',) int64 are those of the head; with `takes_head` its rows are copied from the target's.
    Raises ValueError naming the weight that is wrong.
    """
    if tokens is not None:
        network.set_tokens(tokens.tolist())
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            pack(network, name, tensor, bits)
        elif not name.endswith(".bias"):
            bias = tensors.get(f"{name}.bias")
            network.set_norm(name, floats(tensor), None if bias is None else floats(bias), eps)
    if takes_head:
        network.take_head()
        divisor = target.config.logits_divisor
        temperatures = tuple(divisor * each for each in temperatures)
    network.set_temperatures(temperatures)
    network.check()


def pack(network: _native.DraftNetwork, name: str, tensor: Tensor, bits: int) -> None:
    """Pack a matrix in groups of 4 or 8 bits where its width has them, else as fp16 or fp32."""
    values = np.ascontiguousarray(tensor.detach().float().numpy())
    if bits in HEAD_BITS and values.shape[1] % 32 == 0:
        data = values.view(np.uint8)
        packed = requantize(StoredTensor(name, values.shape, FORMATS["f32"], data), bits)
        dtype, data = packed.format.name, np.ascontiguousarray(packed.data)
    else:
        dtype = "f16" if bits == 16 else "f32"
        data = values.astype(np.float16 if bits == 16 else np.float32).view(np.uint8)
    network.set(name, dtype, values.shape[1], data)


def floats(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to what the native kernels read: fp32, contiguous."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


class NativeStateNetwork(StateNetwork):
    """Drafts from the target's last state natively: a tree of every sequence in one call."""

    ngrams = "native"

    def __init__(self, network: _native.StateNetwork) -> None:
        self._native = network

    def draft(
        self,
        hidden: Tensor,
        tokens: Sequence[int],
        num_nodes: Sequence[int],
        num_steps: int,
        min_chance: float,
        ngrams: AnyNGramModel | None = None,
        min_doubt: float = 0.0,
        rows: Sequence[int] | None = None,
        noises: Sequence[TreeNoise | None] = (),
    ) -> list[GuessTree]:
        """Hand the states over as they lie: a native target's are fp32, on the host."""
        limits = (min(num_steps, MAX_STEPS), min_chance)
        assert ngrams is None or not isinstance(ngrams, Sequence)
        states = hidden.numpy()
        native = native_noises(noises)
        found = (states, tokens, num_nodes, *limits, ngrams, min_doubt, rows, native)
        return self._native.draft(*found)

    def nbytes(self) -> int:
        """Count the bytes of the packed weights."""
        return self._native.nbytes()
