"""The target's states on a device that training has: its layers over whole texts, in torch's mathematics.

They are those of the weights as they are stored, in fp32, where the kernels that serve round the inputs of matrices
too. Training needs no batch invariance, so a text is one pass, and a layer some twenty products. What is learned is
compared with the served model all the same: in the engine, at the end.

R rows of a text, D hidden width, T aux layers, V vocabulary, V' draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.core.arrays import Ids
from forerun.lab.quantize.block import WholeBlock, need_supported
from forerun.lab.torch import reference as ops
from forerun.lab.torch.decoder import Decoder
from forerun.lab.train.states import StateReader
from forerun.model.config import ModelConfig
from forerun.model.loader import read_config, stored_weights
from forerun.model.model import Model
from forerun.weights.checkpoint import open_checkpoint

HEAD_ROWS = 256
"""Rows whose logits over the whole vocabulary are there at once."""


class WholeTexts:
    """A model whose layers read whole texts, on the device of its weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        """`weights` are fp32, by their canonical names. Raises ConfigError for a family that is not supported."""
        need_supported(config, "training on a device")
        self.config, self.device = config, weights["embed"].device
        self._decoder = Decoder(config, weights)
        starts = [f"layers.{i}." for i in range(config.num_layers)]
        of_layers = [
            {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
            for start in starts
        ]
        self._blocks = [WholeBlock(config, each, i) for i, each in enumerate(of_layers)]
        head = weights["embed" if config.tied_head else "head"]
        self._head = head / config.logits_divisor

    @classmethod
    def load(cls, path: Path, device: str) -> WholeTexts:
        """Read a model's weights to a device. Raises LoadError, ConfigError."""
        checkpoint = open_checkpoint(path)
        config, arch = read_config(checkpoint)
        need_supported(config, "training on a device")
        weights = dict[str, Tensor]()
        for name, stored in stored_weights(checkpoint, arch, config):
            weights[name] = torch.from_numpy(stored.dequantize()).float().to(device)
            stored.release()
        return cls(config, weights)

    @torch.no_grad()
    def states(self, tokens: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return what the head reads of a text's tokens (R,) int64, (R, D), and the layers side by side, (R, T D)."""
        x = self._decoder.embedded(tokens)
        outputs = {}
        for i, block in enumerate(self._blocks):
            x = block.output(x)
            outputs[i] = x
        aux = [outputs[layer] for layer in layers]
        return self._decoder.normed(x), torch.cat([x[:, :0], *aux], 1)

    @torch.no_grad()
    def logits(self, last: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits of states (R, D): of all tokens (R, V), or of the head's `rows` (V', D) that are given."""
        head = self._head if rows is None else rows
        return ops.capped(last @ head.T, self.config.logits_cap)

    def head_rows(self, ids: Ids) -> Tensor:
        """Return the head's rows (V', D) of some tokens."""
        return self._head[torch.from_numpy(ids).to(self.device)]

    def likeliest(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return of states (R, D) the normaliser of the logits (R,), and the likeliest token (R,)."""
        parts = [self.logits(rows) for rows in last.split(HEAD_ROWS)]
        normaliser = [part.logsumexp(-1) for part in parts]
        return torch.cat(normaliser), torch.cat([part.argmax(-1) for part in parts])


class DeviceStateReader(StateReader):
    """Computes states on a device, where a `Trainer` learns of them; files of states are as any reader's."""

    def __init__(
        self,
        model: Model,
        layers: tuple[int, ...],
        texts: WholeTexts,
        *,
        all_rows: bool,
        max_len: int,
        folder: Path,
        max_nbytes: int,
    ) -> None:
        """`model` is the target as it is served, `texts` its weights on the device."""
        super().__init__(
            *(model, layers),
            all_rows=all_rows,
            max_len=max_len,
            folder=folder,
            max_nbytes=max_nbytes,
        )
        self.texts, self.device = texts, texts.device
        self._rows: tuple[Ids, Tensor] | None = None
        """The head's rows that were asked for last."""

    @classmethod
    def of(cls, path: Path, device: str) -> Callable[..., DeviceStateReader]:
        """Return what makes a reader as `StateReader` is made, of a model whose weights are read to a device."""

        def made(model: Model, layers: tuple[int, ...], **more: Any) -> DeviceStateReader:
            return cls(model, layers, WholeTexts.load(path, device), **more)

        return made

    def logits(self, last: Tensor, ids: Ids) -> Tensor:
        """Return the logits (R, V') of some tokens, of states (R, D) on the device."""
        if self._rows is None or self._rows[0] is not ids:
            self._rows = ids, self.texts.head_rows(ids)
        return self.texts.logits(last, self._rows[1])

    def _passes(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.texts.states(torch.tensor(tokens).to(self.device), self.layers)

    def _likeliest(self, last: Tensor) -> tuple[Tensor, Tensor]:
        return self.texts.likeliest(last.float())
