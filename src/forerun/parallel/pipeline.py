"""A model cut between layers: each rank holds some of them, and the rows of a pass go through the ranks in turn.

For a model that no single machine holds. One pass waits for the link twice a rank, however many rows it has: drafting
pays that latency once for all tokens that the pass emits. Rank 0 has the embedding, the first layers and the head; the
last rank's rows come back to it. R rows of a pass, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.batch import Batch, Segment
from forerun.core.errors import LoadError
from forerun.model.backends.base import BlankWeight
from forerun.model.backends.native import NativeDecoder
from forerun.model.cache.native import NativeCache
from forerun.model.config import ModelConfig, weight_shapes
from forerun.model.loader import stored_weights
from forerun.parallel.cache import CacheBook, CacheCopies, PartCache, packed, unpacked
from forerun.parallel.split import refuse

if TYPE_CHECKING:
    from forerun.model.arch.base.mapping import Arch
    from forerun.parallel import link
    from forerun.weights.base import Checkpoint
    from forerun.weights.stored import StoredTensor

NO_TOKENS = 16
"""Rows of the embedding of ranks that are given rows: the fewest that the kernels take. They are never read."""
AT_RANK_0 = ("embed", "head", "positions")


def stages(config: ModelConfig, size: int) -> list[range]:
    """Return each rank's layers. Raises LoadError for a model whose layers need each other, or has too few."""
    refuse(config, {}, "a pipeline cannot part: leave out --pipeline-parallel-size")
    count = config.num_layers
    if size > count:
        raise LoadError(f"--pipeline-parallel-size {size} is more than the model's {count} layers")
    # The head is some more work for rank 0, so the larger shares are the last ones'.
    return [range(count * r // size, count * (r + 1) // size) for r in range(size)]


class Stage(NativeDecoder):
    """The layers that one rank holds: `config` is that of the whole model."""

    def __init__(
        self, config: ModelConfig, layers: range, rank: int, num_threads: int | None = None
    ) -> None:
        own = replace(
            config,
            num_layers=len(layers),
            layers=config.layers[layers.start : layers.stop],
        )
        if rank > 0:
            own = replace(own, vocab_size=NO_TOKENS, tied_head=True, learned_position_offset=None)
        super().__init__(own, num_threads=num_threads)
        self.config, self.layers, self.rank = config, layers, rank
        if rank > 0:
            self.add_blank("embed", "f32", (NO_TOKENS, config.hidden_size), False, True)

    def names(self) -> list[str]:
        """Return the weights that a checkpoint has for this rank, by their names here."""
        return [name for name in weight_shapes(self.shard) if name != "embed" or self.rank == 0]

    def cut(self, checkpoint: Checkpoint, arch: Arch) -> Iterator[tuple[str, StoredTensor]]:
        """Yield this rank's weights by their names here; others are not looked at. Raises LoadError."""
        for name in ("norm", *(AT_RANK_0 if self.rank == 0 else ())):
            yield from stored_weights(checkpoint, arch, self.config, name)
        for here, i in enumerate(self.layers):
            for name, stored in stored_weights(checkpoint, arch, self.config, f"layers.{i}."):
                yield name.replace(f"layers.{i}.", f"layers.{here}.", 1), stored

    def blank(self, weights: Iterable[BlankWeight]) -> Iterator[BlankWeight]:
        """Yield what is known of rank 0's part of the weights."""
        names = set(self.names())
        return (weight for weight in weights if weight.name in names)

    def run(
        self,
        cache: NativeCache,
        segments: Sequence[Segment],
        rows: Floats,
        taps: Sequence[int],
    ) -> tuple[Floats, Floats, Floats]:
        """Compute rows (R, D); return the last hidden states, the rows before the norm, and taps (taps, R, D).

        Layers are counted as in the whole model. Raises IndexError.
        """
        first, count = self.layers.start, len(self.layers)
        wanted = sorted({*(t - first for t in taps if t in self.layers), count - 1})
        hidden, tapped = np.empty_like(rows), np.empty((len(wanted), *rows.shape), np.float32)
        self._native.forward(cache.native, segments, rows, hidden, wanted, tapped)
        is_asked = first + count - 1 in taps
        return hidden, tapped[-1], tapped if is_asked else tapped[:-1]


class Pipeline(Stage):
    """The model as rank 0 has it. Implements `model.model.Model`."""

    def __init__(
        self,
        config: ModelConfig,
        all_layers: Sequence[range],
        leader: link.Leader,
        num_threads: int | None = None,
    ) -> None:
        super().__init__(config, all_layers[0], 0, num_threads)
        self._leader, self._all_layers = leader, all_layers
        self._book = CacheBook()
        self.delay_s = 0.0
        """Waited for before rows are sent and when they have come: the latency of a link that is not there."""

    def new_cache(self, *arguments: Any, **named: Any) -> PartCache:
        """Return a cache of these layers' keys and values; the other ranks do with theirs what it does."""
        return self._book.new_cache(self.shard, *arguments, **named)

    def wait_for_others(self) -> None:
        """Return when all ranks have loaded their layers."""
        for rank in range(1, len(self._all_layers)):
            self._leader.request(rank, ("ready",), np.empty(0, np.float32))

    def _pass(
        self,
        cache: NativeCache,
        segments: Sequence[Segment],
        inputs: np.ndarray | None,
        hidden: np.ndarray,
        taps: Sequence[int],
        tapped: np.ndarray,
    ) -> None:
        assert isinstance(cache, PartCache)
        if inputs is None:
            inputs = self.embed(Batch(tuple(segments)).tokens())
        last, rows, own = self.run(cache, segments, inputs, taps)
        found = [own]
        if changes := self._book.take_changes():
            self._leader.send("cache", changes)
        command = ("pass", cache.number, packed(segments), list(taps))
        for rank in range(1, len(self._all_layers)):
            time.sleep(self.delay_s)
            answer = self._leader.request(rank, command, rows).reshape(-1, *rows.shape)
            time.sleep(self.delay_s)
            last, rows = answer[0], answer[1]
            found.append(answer[2:])
        hidden[:] = last
        tapped[:] = np.concatenate(found)


class StageFollower:
    """What another rank of a pipeline does."""

    def __init__(self, stage: Stage, leader: link.Follower) -> None:
        self._stage, self._leader = stage, leader
        self._caches = CacheCopies(stage.new_cache)
        self.commands: dict[str, Callable[..., None]] = {
            "ready": self._ready,
            "cache": self._caches.follow,
            "pass": self._compute,
        }

    def _ready(self) -> None:
        self._leader.answer(self._leader.rows())

    def _compute(self, cache: int, segments: list[Any], taps: list[int]) -> None:
        rows = self._leader.rows().reshape(-1, self._stage.config.hidden_size)
        own = self._caches[cache]
        hidden, end, tapped = self._stage.run(own, unpacked(segments), rows, taps)
        self._leader.answer(np.concatenate([hidden[None], end[None], tapped]))
