"""What networks that draft on a device share: how weights get there, the rows of a step, the head.

They take weights as `_native.DraftNetwork` does. A step's rows and logits are computed on the device, with the bits of
the CPU's kernels; what they say and how trees grow is `_native.ComputedNetwork`'s, on the host.

R rows of a step, D hidden width of the target, V' tokens of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun import _native
from forerun.core.arrays import Floats, Ids
from forerun.core.errors import LoadError
from forerun.gpu.decoder import GpuDecoder
from forerun.gpu.graphs import ROWS as GRAPH_ROWS
from forerun.gpu.host import to_host
from forerun.gpu.layers import Buffers, Norm, put_activation, put_norm
from forerun.gpu.matrices import ROWS, Matrix, Rows
from forerun.model.backends.native import NativeDecoder
from forerun.model.config import ModelConfig
from forerun.weights.codes import FORMATS, Bytes
from forerun.weights.stored import StoredTensor

MAX_STEPS = 16
"""Of a sequence in a draft: kMaxSteps of csrc/drafters/growth.h."""


class Steps(NamedTuple):
    """The rows of a step that read the same weights: (R,) each."""

    sequences: NDArray[np.int32]
    """Of the draft, 0, 1, ..."""
    numbers: NDArray[np.int32]
    """Which of the sequence's steps it is."""
    above: NDArray[np.int32]
    """The step over the node above; -1: none."""
    tokens: NDArray[np.int32]
    depths: NDArray[np.int32]


class GpuNetwork:
    """A network that drafts for a model on a device; override `check`, `begin_draft` and `step_logits`."""

    num_depths = 1
    """Depths that have weights of their own, the last for all below."""

    def __init__(
        self, target: GpuDecoder, max_depth: int, *, sees_depth_alone: bool = False
    ) -> None:
        """Begin without weights; a node may be as deep as `max_depth`."""
        self.target, self.device, self.width = target, target.device, target.config.hidden_size
        self.buffers = Buffers(self.device)
        self.matrices: dict[str, Matrix] = {}
        self.norms: dict[str, Norm] = {}
        self.eps = 0.0
        """What norms add: all of a network's the same."""
        self.tokens: Ids | None = None
        """Of the head (V',); None for all."""
        self.heads: list[Matrix] = []
        self._of_eps: dict[float, ModelConfig] = {}
        step = WeakMethod(self.step)  # which the kernels would keep alive for good

        def compute(rows: NDArray[np.int32]) -> tuple[Floats, NDArray[np.float64] | None]:
            alive = step()
            assert alive is not None
            return alive(rows)

        host = NativeDecoder(target.config.without_layers(tied_head=True))
        self.native = _native.ComputedNetwork(
            host.runtime, host.native, max_depth, sees_depth_alone, compute
        )

    def set(self, name: str, format: str, num_in: int, rows: Bytes) -> None:
        """Take a matrix. Raises LoadError where the device has no memory for it."""
        stored = StoredTensor(name, (len(rows), num_in), FORMATS[format], rows)
        with self.filling():
            self.matrices[name] = Matrix.pack([(stored, None)], self.device)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Bring weights to the device. Raises LoadError where it has no memory for them."""
        try:
            with self.target.current():
                yield
        except torch.OutOfMemoryError as error:
            raise LoadError(
                f"{self.device} has no memory for a network that drafts: take another drafter (-d), or --device cpu"
            ) from error

    def set_norm(self, name: str, weight: Floats, bias: Floats | None, eps: float) -> None:
        """Take a vector, and its bias if it has one; as a norm it adds `eps`."""
        put = self.target.to_device
        self.norms[name] = Norm(put(weight), None if bias is None else put(bias))
        self.eps = eps

    def set_tokens(self, ids: Sequence[int]) -> None:
        """Take the tokens that heads have rows for, ascending."""
        self.tokens = np.asarray(ids, np.int64)
        self.native.set_tokens(ids)

    def take_head(self) -> None:
        """Take the rows of the target's head for those tokens; for all, it is the target's own."""
        self.matrices["head.0"] = self.target.head_of(self.tokens)

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Take by depth what logits are divided by, the last for all below."""
        self.native.set_temperatures(temperatures)

    def check(self) -> None:
        """Raise ValueError naming a weight that is missing or has another shape."""
        raise NotImplementedError

    def nbytes(self) -> int:
        """Return the bytes of the weights, those of the target's own head left out."""
        shared = self.target.head_of(None)
        matrices = sum(each.nbytes() for each in self.matrices.values() if each is not shared)
        return matrices + sum(each.nbytes() for each in self.norms.values()) + self.native.nbytes()

    def begin_draft(
        self, num_steps: Sequence[int], rows: Sequence[int] | None, states: Floats | None
    ) -> _native.ComputedNetwork:
        """Begin a draft of sequences, of so many steps at most; return who is asked for these.

        They are rows of the target's states, or slots, None for all.
        """
        raise NotImplementedError

    def step(self, rows: NDArray[np.int32]) -> tuple[Floats, NDArray[np.float64] | None]:
        """Compute rows (R, 5) of `StepRow`: their logits (R, V'), and how much of its probabilities each is worth."""
        num_ids = self.heads[0].num_out
        logits = np.empty((len(rows), num_ids), np.float32)
        with self.target.current():
            for here in self._alike(rows[:, 4]):
                logits[here] = to_host(self.step_logits(Steps(*rows[here].T)))
        return logits, None

    def step_logits(self, steps: Steps) -> Tensor:
        """Compute the logits of rows (R, V') of depths that read the same weights."""
        raise NotImplementedError

    def logits(self, x: Tensor, depth: int = 0) -> Tensor:
        """Multiply rows by the head of a depth: (R, V')."""
        head = self.heads[min(depth, len(self.heads) - 1)]
        logits = self.room("logits", len(x), head.num_out)
        head.multiply(self.read("head", x, head), len(x), logits)
        return logits

    def own_depth(self, steps: Steps) -> int:
        """Return the depth whose weights some rows read."""
        return min(int(steps.depths[0]), self.num_depths - 1)

    def _alike(self, depths: NDArray[np.int32]) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of each depth that has weights of its own, as many together as buffers have room for."""
        own = np.minimum(depths, self.num_depths - 1)
        for depth in np.unique(own):
            found = np.flatnonzero(own == depth)
            yield from (found[start : start + ROWS] for start in range(0, len(found), ROWS))

    def matrix(self, name: str, num_out: int, num_in: int) -> Matrix:
        """Return a matrix. Raises ValueError as `check` does."""
        found = self.matrices.get(name)
        if found is None:
            raise ValueError(f"weight {name} is missing")
        if (found.num_out, found.num_in) != (num_out, num_in):
            raise ValueError(
                f"{name} is ({found.num_out}, {found.num_in}), expected ({num_out}, {num_in})"
            )
        return found

    def norm(self, name: str, width: int) -> Norm:
        """Return a vector. Raises ValueError as `check` does."""
        found = self.norms.get(name)
        if found is None:
            raise ValueError(f"weight {name} is missing")
        if any(each is not None and len(each) != width for each in (found.weight, found.bias)):
            raise ValueError(f"{name} must have {width} values")
        return found

    def check_heads(self, width: int) -> None:
        """Find the heads by depth: "head.0", and those that there are up to the last depth."""
        self.native.check()
        num_ids = self.target.config.vocab_size if self.tokens is None else len(self.tokens)
        last = max(i for i in range(self.num_depths) if not i or f"head.{i}" in self.matrices)
        self.heads = [self.matrix(f"head.{i}", num_ids, width) for i in range(last + 1)]

    def read(
        self, name: str, x: Tensor, reader: Matrix, norm: Norm | None = None, eps: float = 0.0
    ) -> Rows:
        """Hand rows (R, K) on to a matrix that reads them, normed or as they are, in the buffer of a name."""
        rows = self.buffers.read(name, x.shape[1])
        put_norm(x, norm, self.adding(eps), len(x), to=rows, readers=(reader,))
        return rows

    def room(self, name: str, num: int, width: int) -> Tensor:
        """Return a buffer of rows (R, width): for as many as graphs have it lies at the same place for good."""
        most = GRAPH_ROWS[-1]
        if num > most:
            return self.buffers.floats(f"{name} of many", num, width)
        return self.buffers.floats(name, most, width)[:num]

    def adding(self, eps: float) -> ModelConfig:
        """Return the target's configuration with RMS norms that add `eps`."""
        if eps not in self._of_eps:
            changed = replace(self.target.config, norm="rms", norm_eps=eps, residual_multiplier=1.0)
            self._of_eps[eps] = changed
        return self._of_eps[eps]

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """Return an activation of rows (R, K), in a buffer."""
        out = self.room("activated", *x.shape)
        put_activation(x, len(x), kind, Rows(out, x, x, x))
        return out
