"""The parts of a model outside its blocks, some rows at a time: embedding, positions, last norm, head.

H texts of T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forerun.core.errors import LoadError
from forerun.lab.quantize.hf_export import named
from forerun.lab.quantize.tensor_file import Chunks
from forerun.lab.torch import reference as ops
from forerun.model.arch.base.mapping import Arch
from forerun.model.config import ModelConfig
from forerun.model.loader import stored_weights
from forerun.model.shapes import weight_shapes
from forerun.weights.checkpoint import Checkpoint
from forerun.weights.stored import StoredTensor

_ROWS_AT_A_TIME = 2048
_LOGITS_AT_A_TIME = 1 << 20


@dataclass(frozen=True, slots=True)
class Outside:
    """Those of a checkpoint."""

    checkpoint: Checkpoint
    arch: Arch
    config: ModelConfig

    def embed(self, texts: Sequence[Sequence[int]], *, is_rounded: bool = False) -> Tensor:
        """Embed texts of equal length (H, T) as the first block reads them: (H, T, D), fp32; or as `tensors` rounds."""
        config = self.config
        if not len(texts):
            return torch.empty(0, 1, config.hidden_size)
        stored = dict(stored_weights(self.checkpoint, self.arch, config, "embed"))["embed"]
        ids = np.array(texts)
        states = torch.empty(*ids.shape, config.hidden_size)
        for text, each in zip(ids, states, strict=True):
            rows = torch.from_numpy(stored.rows(text).dequantize())
            rows = _near(rows) if is_rounded else rows
            torch.mul(rows, config.embedding_multiplier, out=each)
        stored.release()
        if config.learned_position_offset is not None:
            table = dict(stored_weights(self.checkpoint, self.arch, config, "positions"))
            first = config.learned_position_offset
            states += torch.from_numpy(
                table["positions"].rows(slice(first, first + ids.shape[1])).dequantize()
            )
        return states

    def loss(self, states: Tensor, ids: Tensor, *, is_rounded: bool = False) -> float:
        """Return the mean loss in nats of each text's tokens but the first; states (H, T, D), ids (H, T)."""
        rows = self._norm(states[:, :-1].flatten(0, 1))
        targets = ids[:, 1:].flatten()
        total = torch.full((len(rows),), -torch.inf)
        chosen = torch.zeros(len(rows))
        start = 0
        for logits in self._logits(rows, rows if is_rounded else rows[:0]):
            total = torch.logaddexp(total, logits.logsumexp(-1))
            stop = start + logits.shape[-1]
            here = (targets >= start) & (targets < stop)
            chosen[here] = logits[here, targets[here] - start]
            start = stop
        return float((total - chosen).double().mean())

    def divergence(self, states: Tensor, *, is_rounded: bool = False) -> Tensor:
        """Return the mean KL divergence (C - 1,) in nats of what states[1:] predict from states[0]'s, (C, H, T, D).

        The states, of which there may be many, become what the head reads; `is_rounded`: states[1:]'s is rounded.
        """
        rows = states.view(len(states), -1, states.shape[-1])
        for each in rows:
            each.copy_(self._norm(each))
        sums = torch.full(rows.shape[:2], -torch.inf)
        rounded = rows[1:] if is_rounded else rows[:0]
        for logits in self._logits(rows, rounded):
            sums = torch.logaddexp(sums, logits.logsumexp(-1))
        total = torch.zeros(len(rows) - 1, dtype=torch.float64)
        for logits in self._logits(rows, rounded):
            logs = logits - sums[..., None]
            total += (logs[0].exp() * (logs[0] - logs[1:])).sum((-1, -2), dtype=torch.float64)
        return total / rows.shape[1]

    def _logits(self, rows: Tensor, rounded: Tensor) -> Iterator[Tensor]:
        """Logits (..., n) of rows (..., D), some tokens at a time. The last ones are `rounded`, if any, and read so."""
        config = self.config
        name = "embed" if config.tied_head else "head"
        stored = dict(stored_weights(self.checkpoint, self.arch, config, name))
        step = max(1, _LOGITS_AT_A_TIME // max(1, rows[..., 0].numel()))
        for start in range(0, config.vocab_size, step):
            part = slice(start, min(start + step, config.vocab_size))
            weights = torch.from_numpy(stored[name].rows(part).dequantize())
            logits = rows @ weights.T
            if len(rounded):
                codes, scales = ops.flatten_by_row(rounded.flatten(0, -2), torch.ones(1))
                near = (codes * scales) @ _near(weights).T
                logits[len(rows) - len(rounded) :] = near.view(*rounded.shape[:-1], -1)
            if f"{name}.bias" in stored:
                logits += torch.from_numpy(stored[f"{name}.bias"].dequantize())[part]
            yield ops.capped(logits / config.logits_divisor, config.logits_cap)
            stored[name].release()

    def tensors(self, *, is_rounded: bool) -> Iterator[tuple[str, np.ndarray | Chunks]]:
        """Yield the weights as fp16, by their Hugging Face names; embedding and head perhaps as 8 bits, a scale a row.

        Rows raise LoadError for what fp16 cannot hold.
        """
        for name in weight_shapes(self.config):
            if name.startswith("layers."):
                continue
            for short, stored in stored_weights(self.checkpoint, self.arch, self.config, name):
                if len(stored.shape) == 1:
                    vector = {short: as_fp16_of(stored)}
                    ((located, values),) = named(self.arch, self.config, None, vector).items()
                    assert isinstance(values, np.ndarray)
                    yield located, values
                    continue
                (located,) = named(self.arch, self.config, None, {short: np.empty(0)})
                if is_rounded and short in ("embed", "head"):
                    yield from _rounded(located.removesuffix(".weight"), stored)
                    continue
                yield located, Chunks(stored.shape, np.dtype(np.float16), _halves(stored))

    def _norm(self, x: Tensor) -> Tensor:
        parts = dict(stored_weights(self.checkpoint, self.arch, self.config, "norm"))
        weight = torch.from_numpy(parts["norm"].dequantize())
        if self.config.norm == "rms":
            return ops.rms_norm(x, weight, self.config.norm_eps)
        bias = torch.from_numpy(parts["norm.bias"].dequantize()) if "norm.bias" in parts else None
        return ops.layer_norm(x, weight, bias, self.config.norm_eps)


def _rounded(layer: str, stored: StoredTensor) -> Iterator[tuple[str, np.ndarray | Chunks]]:
    """Yield the tensors of a flattened layer whose inputs are rounded by a scale of each row's own."""
    scales = [_scales(rows) for rows in _row_parts(stored)]
    codes = (_codes(rows).to(torch.int8).numpy() for rows in _row_parts(stored))
    yield f"{layer}.weight_scale", torch.cat(scales)[:, 0].numpy()
    yield f"{layer}.input_step", np.ones(stored.shape[1], np.float32)
    yield f"{layer}.weight", Chunks(stored.shape, np.dtype(np.int8), codes)


def _row_parts(stored: StoredTensor) -> Iterator[Tensor]:
    for start in range(0, stored.shape[0], _ROWS_AT_A_TIME):
        yield torch.from_numpy(stored.rows(slice(start, start + _ROWS_AT_A_TIME)).dequantize())
        stored.release()


def _scales(rows: Tensor) -> Tensor:
    return rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127


def _codes(rows: Tensor) -> Tensor:
    return torch.round(rows / _scales(rows))


def _near(rows: Tensor) -> Tensor:
    return _codes(rows) * _scales(rows)


def _halves(stored: StoredTensor) -> Iterator[np.ndarray]:
    for start in range(0, stored.shape[0], _ROWS_AT_A_TIME):
        yield as_fp16_of(stored.rows(slice(start, start + _ROWS_AT_A_TIME)))
        stored.release()


def as_fp16_of(stored: StoredTensor) -> np.ndarray:
    """Read a tensor as fp16. Raises LoadError for numbers that it cannot hold."""
    complaint = (
        f"tensor '{stored.name}' holds numbers that fp16, which the layouts ask for, cannot hold"
    )
    return as_fp16(torch.from_numpy(stored.dequantize()), complaint)


def as_fp16(values: Tensor, complaint: str) -> np.ndarray:
    """Round to fp16. Raises LoadError with the complaint for numbers that it cannot hold."""
    halves = values.to(torch.float16)
    if not torch.isfinite(halves).all():
        raise LoadError(complaint)
    array: np.ndarray = halves.cpu().numpy()
    return array
