"""The target's states over texts, computed by the target as it is served, in passes as long as a prompt's.

For most models the target's passes are what training costs, so states are kept in a folder, a file a text, while there
is room: a run that goes on, the next epoch and another network of the same target find them. They are rounded to fp16
at once: whether they were kept changes nothing.

R rows of a text, D hidden width, T aux layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from forerun.core.arrays import Floats, Ids
from forerun.core.batch import Batch, Segment
from forerun.core.errors import CapacityError
from forerun.core.types import Seq
from forerun.lab.train.replies import Reply
from forerun.model.model import Model
from forerun.system import files

CHUNK = 128
"""Rows of a pass."""
SUFFIX = ".states"
KEYS = {"last": "last", "aux": "taps", "log_normaliser": "log_normaliser", "best": "best"}
"""The key of each field of `States` in a file."""


@dataclass(frozen=True, slots=True)
class States:
    """Of a text's rows from `start` on, but for its last token's. Row r has read token r, and predicts token r + 1."""

    start: int
    last: Tensor
    """(R, D) fp16, what the head reads."""
    aux: Tensor
    """(R, T D) fp16, layers side by side."""
    log_normaliser: Tensor
    """(R,) fp32, of the logits over the whole vocabulary."""
    best: Tensor
    """(R,) int64, the target's likeliest token."""


class NoStates:
    """Gives texts without states, for learners that read none while they learn the text's own tokens."""

    all_rows = True

    def __call__(self, reply: Reply) -> States:
        """Return states without numbers, a row each token."""
        rows = len(reply.tokens)
        none, zeros = torch.empty(rows, 0), torch.zeros(rows)
        return States(0, none, none, zeros, zeros.long())


class StateReader:
    """Computes states: of all rows if a drafter looks back at them, else of those that are learned from.

    They are kept in `folder`, which is this target's and these layers' alone, up to `max_nbytes` of them.
    """

    def __init__(
        self,
        model: Model,
        layers: tuple[int, ...],
        *,
        all_rows: bool,
        max_len: int,
        folder: Path,
        max_nbytes: int,
    ) -> None:
        self.model, self.layers, self.all_rows = model, layers, all_rows
        self.device = torch.device("cpu")
        """Where a drafter learns of them; they themselves are handed over on the host."""
        self.folder, self.max_nbytes = folder, max_nbytes
        self.num_computed = 0
        """Tokens the target has read."""
        self.max_len = max_len
        self._cache = model.new_cache(1, max_len)
        self._nbytes = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))

    def __call__(self, reply: Reply) -> States:
        """Return the states of a text. Raises CapacityError if it is longer than `max_len`."""
        start = self._start(reply)
        path = self._path(reply.tokens, start)
        with suppress(OSError, SafetensorError, KeyError):  # not there, or damaged
            stored = load(path.read_bytes())
            return States(start, **{name: stored[key] for name, key in KEYS.items()})
        states = self._compute(reply, start)
        self._keep(path, states)
        return states

    def is_kept(self, reply: Reply) -> bool:
        """Tell whether a text's states are in the folder."""
        return self._path(reply.tokens, self._start(reply)).exists()

    def _start(self, reply: Reply) -> int:
        return 0 if self.all_rows else reply.first - 1

    def _path(self, tokens: Sequence[int], start: int) -> Path:
        return self.folder / f"{_digest(tokens, start)}{SUFFIX}"

    def put(self, tokens: Sequence[int], start: int, last: Floats) -> None:
        """Keep the states (R, D) of a text that was computed elsewhere: of all tokens from `start` on but the last.

        As no layers are among them, they are for drafters without aux layers.
        """
        path = self._path(tokens, start)
        if not path.exists():
            self._keep(path, self._states(start, torch.from_numpy(last), torch.empty(len(last), 0)))

    def _keep(self, path: Path, states: States) -> None:
        data = save({key: getattr(states, name) for name, key in KEYS.items()})
        if self._nbytes + len(data) > self.max_nbytes:
            return
        try:
            files.replace(path, data)
        except OSError:  # the disk is full: what is there serves, the rest is computed again
            self.max_nbytes = 0
        self._nbytes += len(data)

    def _compute(self, reply: Reply, start: int) -> States:
        tokens = reply.tokens[:-1]
        if len(tokens) >= self.max_len:
            raise CapacityError(f"a text of {len(tokens) + 1} tokens does not fit {self.max_len}")
        last, aux = self._passes(tokens)
        self.num_computed += len(tokens)
        return self._states(start, last[start:], aux[start:])

    def logits(self, last: Tensor, ids: Ids) -> Tensor:
        """Return the target's logits (R, V') of some tokens, of states (R, D), both on `device`."""
        return torch.from_numpy(self.model.head_rows(last.numpy(), ids))

    def _passes(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Compute the states (R, D) of a text's tokens, and the layers' side by side, (R, T D)."""
        cache = self._cache
        cache.truncate(0, 0)
        lasts, aux = [], []
        for at in range(0, len(tokens), CHUNK):
            part = tokens[at : at + CHUNK]
            hidden = self.model.forward(Batch((Segment(0, at, tuple(part)),)), cache, self.layers)
            cache.keep(0, range(len(part)))
            lasts.append(hidden.last)
            aux.append(np.concatenate([np.empty((len(part), 0), np.float32), *hidden.aux], 1))
        last, of_layers = (torch.from_numpy(np.concatenate(each)) for each in (lasts, aux))
        return last, of_layers

    def _likeliest(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return of states (R, D) the normaliser of the target's logits (R,), and its likeliest token (R,)."""
        top = self.model.topk(last.float().numpy(), 1, log_normaliser=True)
        assert top.log_normaliser is not None
        return torch.from_numpy(top.log_normaliser), torch.from_numpy(top.ids[:, 0]).contiguous()

    def _states(self, start: int, last: Tensor, aux: Tensor) -> States:
        last, aux = last.half(), aux.half()
        parts = last, aux, *self._likeliest(last)
        return States(start, *(part.cpu() for part in parts))


class StateRecorder:
    """Keeps the states of answers while an engine makes them, where a reader of the same model finds them.

    Kernels are batch-invariant: a row's states have the same bits in whatever pass they are computed.
    """

    def __init__(self, read: StateReader) -> None:
        self.read = read
        self._of_seqs: dict[int, tuple[Seq, dict[int, Floats]]] = {}
        """Sequences by id, and the states (D,) of their tokens by position, from the prompt's last token on."""

    def watch(self, seq: Seq, base: int, rows: Floats) -> None:
        """Take what a pass made final, as an engine's `watch`."""
        self.write_ended()
        _, own = self._of_seqs.setdefault(seq.id, (seq, {}))
        own |= {i: row.copy() for i, row in enumerate(rows, base) if i >= seq.num_prompt - 1}

    def write_ended(self) -> None:
        """Write the states of sequences that have ended, but for incomplete ones and those too long to be read."""
        ended = [seq for seq, _ in self._of_seqs.values() if seq.finish_reason is not None]
        for seq in ended:
            _, own = self._of_seqs.pop(seq.id)
            start, stop = seq.num_prompt - 1, len(seq.tokens) - 1
            is_whole = own.keys() >= {*range(start, stop)}
            if is_whole and len(seq.tokens) <= self.read.max_len:
                self.read.put(seq.tokens, start, np.stack([own[i] for i in range(start, stop)]))


def _digest(tokens: Sequence[int], start: int) -> str:
    """Hash a text to 128 bits, as nothing would show that two texts share a file of states."""
    return blake2b(np.array([start, *tokens], np.int64).tobytes(), digest_size=16).hexdigest()
